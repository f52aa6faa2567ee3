"""The layer strip, as its module draws it and at sizes that do not divide evenly."""

from meshnet_cli import strip as module
from meshnet_cli.strip import MOST_BARS, Bar, strip
from meshnet_tracker.registry.coverage import cover

ALPHA, BETA = Bar("alpha/main", 0, 12, "dark"), Bar("beta/main", 9, 16, "dark")


def draw(layer_count, bars, proven=()):
    coverage = cover([(bar.start, bar.end) for bar in bars], layer_count)
    return strip(layer_count, coverage, bars, proven).plain.splitlines()


def test_the_strip_in_the_modules_own_page_is_what_it_draws():
    drawn = "\n".join(f"    {line}".rstrip() for line in draw(18, [ALPHA, BETA], [9]))
    assert drawn in module.__doc__


def test_bars_seams_and_gap_stand_over_their_layers():
    _steps, ticks, alpha, beta, gap, labels = draw(18, [ALPHA, BETA], [9])
    at = {layer: labels.index(str(layer)) for layer in (0, 9, 12, 16, 18)}
    assert (alpha.index("━"), alpha.rindex("━") + 1) == (at[0], at[12])
    assert (beta.index("━"), beta.rindex("━") + 1) == (at[9], at[16])
    assert (ticks.index("┃"), ticks.index("┆")) == (at[9], at[12])
    assert (gap.index("╱"), gap.rindex("╱") + 1) == (at[16], at[18])
    assert "[16, 18)" in gap


def test_more_layers_or_claims_than_there_is_room_for_still_fit_a_terminal():
    many = [Bar(f"node-{at}/with-a-long-name", at, at + 10, "dark") for at in range(0, 990, 10)]
    lines = draw(1000, many)
    assert max(map(len, lines)) <= 80
    assert f"and {len(many) - MOST_BARS} more claims" in "\n".join(lines)
    assert any("gap [990, 1000)" in line and "╱" in line for line in lines)


def test_a_model_that_nobody_holds_is_one_gap():
    steps, gap, _labels = draw(2, [])
    assert steps.split() == ["replicas", "0"]
    assert gap.startswith("gap [0, 2)")


def test_a_label_steers_no_terminal_and_breaks_no_line():
    lines = draw(18, [Bar("e\x1b[2J\nvil", 0, 18, "dark")])
    assert len(lines) == len(draw(18, [Bar("plain", 0, 18, "dark")]))
    assert all(line.isprintable() for line in lines)
    steps, bar, _labels = lines
    assert steps.index("█") == bar.index("━")
