"""`meshnet audit replay` and its siblings on a signed history in a file: no server anywhere."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from cli_kit import MESHNET
from kit import Scenario
from meshnet_auditor.source import write_records
from meshnet_cli.__main__ import run
from meshnet_cli.options import PRESENCE_NOTE
from meshnet_cli.output import write_line

DATA = Path(__file__).parent.parent / "data"
HISTORY = DATA / "history.ndjson"
EXPECTED = json.loads((DATA / "history.expect.json").read_text())
RECIPE = next(iter(EXPECTED["status_at"]["18"]))
ESCAPE = "\x1b"


def replay(meshnet, *options):
    return meshnet("audit", "replay", "--from", HISTORY, "-o", "json", *options).json


def statuses(document):
    return {recipe["recipe_key"]: recipe["status"] for recipe in document["recipes"]}


def test_a_replayed_history_has_the_expected_outcomes_and_state(meshnet):
    document = replay(meshnet, "--operator", EXPECTED["operator"])
    assert document["realm"] == EXPECTED["realm"]
    assert document["sequence"] == len(EXPECTED["records"])
    assert document["outcomes"] == EXPECTED["outcomes"]
    assert statuses(document) == EXPECTED["recipes"]
    assert {node["node"]: node["status"] for node in document["nodes"]} == EXPECTED["node_status"]


@pytest.mark.parametrize("sequence", ["18", "19"])
def test_a_replay_to_a_sequence_says_what_held_then(meshnet, sequence):
    document = replay(meshnet, "--to", sequence)
    assert document["sequence"] == int(sequence)
    assert statuses(document) == EXPECTED["status_at"][sequence]


def test_as_of_a_time_is_the_longest_prefix_without_a_later_record(meshnet):
    certified = replay(meshnet, "--to", 19)
    then = replay(meshnet, "--as-of", certified["time"])
    assert then == certified
    just_before = certified["time"].replace(".000Z", "").replace(":39", ":38.999Z")
    assert replay(meshnet, "--as-of", just_before)["sequence"] == 18


def test_a_time_that_steps_back_ends_the_prefix_where_it_first_exceeds(meshnet):
    lines = [json.loads(line) for line in HISTORY.read_text().splitlines()[:10]]
    lines[4]["time_ns"] = lines[9]["time_ns"]  # one later record, then earlier times again
    path = meshnet.home / "stepping.ndjson"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    time_ns = lines[8]["time_ns"]
    as_of = f"2026-09-21T14:13:{time_ns // 10**9 - 1790000000 + 20:02d}Z"
    ran = meshnet("audit", "replay", "--from", path, "--as-of", as_of, "-o", "json")
    assert ran.json["sequence"] == 4


def test_a_realm_created_by_another_operator_fails_verification(meshnet):
    other = EXPECTED["nodes"]["alpha"]
    refused = meshnet("audit", "replay", "--from", HISTORY, "--operator", other, code=3)
    assert EXPECTED["operator"] in refused.err


def test_a_root_of_trust_that_nobody_vouched_for_is_not_shown_as_checked(meshnet):
    unheld = meshnet("audit", "replay", "--from", HISTORY).out
    assert EXPECTED["operator"] in unheld
    assert "not checked: name the key that you were told, --operator" in unheld
    held = meshnet("audit", "replay", "--from", HISTORY, "--operator", EXPECTED["operator"]).out
    assert EXPECTED["operator"] in held
    assert "not checked" not in held


def test_a_history_with_a_record_missing_fails_verification(meshnet):
    lines = HISTORY.read_text().splitlines(keepends=True)
    (meshnet.home / "gap.ndjson").write_text("".join(lines[:5] + lines[6:]))
    refused = meshnet("audit", "replay", "--from", "gap.ndjson", code=3)
    assert "gap.ndjson: gap: sequence 7 arrived; expected 6" in refused.err
    assert "get it again from where it came" in refused.err
    assert "views" not in refused.err
    logged = meshnet("log", "--from", "gap.ndjson", code=3)
    assert logged.err == refused.err


@pytest.mark.parametrize("command", [("audit", "replay"), ("log",), ("recipe", "list")])
def test_a_history_that_can_be_read_only_once_is_refused_clearly(meshnet, command):
    pipe = meshnet.home / "pipe"
    os.mkfifo(pipe)
    refused = meshnet(*command, "--from", pipe, code=2)
    assert "no regular file" in refused.err
    assert "write what comes through a pipe to a file first" in refused.err
    assert "no regular file" in meshnet(*command, "--from", meshnet.home, code=2).err


def test_a_file_that_comes_as_standard_input_is_read_like_any_other(meshnet):
    with HISTORY.open("rb") as history:
        done = subprocess.run(
            [*MESHNET, "recipe", "list", "--from", "/dev/stdin"],
            stdin=history,
            env=meshnet.env,
            capture_output=True,
            text=True,
            check=True,
        )
    assert RECIPE[:12] in done.stdout


def test_a_broken_line_is_named(meshnet):
    lines = HISTORY.read_text().splitlines(keepends=True)
    lines[6] = '{"sequence":7,\n'
    (meshnet.home / "broken.ndjson").write_text("".join(lines))
    refused = meshnet("audit", "replay", "--from", "broken.ndjson", code=1)
    assert "line 7" in refused.err
    assert refused.out == ""


def test_what_is_not_there_is_not_found(meshnet):
    assert "nowhere" in meshnet("audit", "replay", "--from", "nowhere.ndjson", code=5).err
    assert "ends at 38" in meshnet("audit", "replay", "--from", HISTORY, "--to", 99, code=5).err
    unknown = meshnet("recipe", "show", "0" * 64, "--from", HISTORY, code=5)
    assert RECIPE in unknown.err  # a candidate
    short = meshnet("recipe", "show", RECIPE[:7], "--from", HISTORY, code=5)
    assert "too short" in short.err
    assert "beta" in meshnet("shard", "why-not", "nobody", "--from", HISTORY, code=5).err


@pytest.mark.parametrize(
    "arguments",
    [
        "audit replay --to 1 --as-of 2026-01-01T00:00:00Z",
        "audit replay --to seven",
        f"audit replay --as-of yesterday --from {HISTORY}",
        f"audit replay --operator UNKNOWN --from {HISTORY}",
        "recipe list -o yaml",
        "recipe lst",
        "no-such-command",
        "route plan",
    ],
)
def test_wrong_usage_is_told_apart_from_failing(arguments, capsys):
    assert run(arguments.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("meshnet: ")
    assert said.out == ""


def test_no_realm_named_anywhere_is_wrong_usage(meshnet):
    assert "no realm is named" in meshnet("recipe", "list", code=2).err


def test_no_server_is_unreachable_and_the_advice_says_how_to_get_one(meshnet):
    refused = meshnet("audit", "replay", "--realm", "lab", "--server", "nats://127.0.0.1:1", code=4)
    assert "nats://127.0.0.1:1" in refused.err
    assert "meshnet up" in refused.err


def test_flags_go_before_environment_before_profile(meshnet):
    # no name of a realm may have capitals, so the one that counts is named in the refusal
    profile = meshnet.home / "p.toml"
    profile.write_text('realm = "Profile"\nserver = "nats://127.0.0.1:1"\n')
    command = ("audit", "replay")
    assert "'Profile'" in meshnet(*command, "--profile", profile, code=2).err
    env = {"MESHNET_PROFILE": str(profile), "MESHNET_REALM": "Environment"}
    assert "'Environment'" in meshnet(*command, code=2, **env).err
    assert "'Flag'" in meshnet(*command, "--realm", "Flag", code=2, **env).err


def test_another_realms_profile_says_nothing_of_the_operator_of_a_file(meshnet):
    profile = meshnet.home / "p.toml"
    profile.write_text(f'realm = "home"\noperator = "{EXPECTED["nodes"]["alpha"]}"\n')
    replay(meshnet, "--profile", profile)
    profile.write_text(f'realm = "lab"\noperator = "{EXPECTED["nodes"]["alpha"]}"\n')
    meshnet("audit", "replay", "--from", HISTORY, "--profile", profile, code=3)


def test_a_profile_with_an_unknown_member_is_refused_by_name(meshnet):
    (meshnet.home / "p.toml").write_text('relm = "lab"\n')
    assert "relm" in meshnet("recipe", "list", "--profile", "p.toml", code=1).err


@pytest.mark.parametrize(
    "command",
    [
        ("audit", "replay"),
        ("recipe", "list"),
        ("recipe", "show", RECIPE),
        ("recipe", "explain", RECIPE),
        ("shard", "list"),
        ("log",),
    ],
)
def test_tables_say_up_to_where_they_speak_and_hold_no_escapes_in_a_pipe(meshnet, command):
    out = meshnet(*command, "--from", HISTORY).out
    assert ESCAPE not in out
    assert "38" in out
    if command[0] != "log":
        assert "presence is left out" in out
    # wider are only lines that hold something to copy whole
    wide = [line for line in out.splitlines() if len(line) > 80]
    assert all(re.search("[0-9a-f]{64}|U[A-Z2-7]{55}", line) for line in wide), wide


def on_a_terminal(meshnet, *arguments, **env):
    """The bytes that a command writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*MESHNET, *arguments],
        cwd=meshnet.home,
        env=meshnet.env | {"TERM": "xterm-256color"} | env,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not chunk:
                break
            said += chunk
        process.wait(timeout=30)
    os.close(ours)
    return said.decode()


def test_a_terminal_gets_colours_unless_no_color_is_set(meshnet):
    command = ("recipe", "list", "--from", str(HISTORY))
    assert ESCAPE in on_a_terminal(meshnet, *command)
    plain = on_a_terminal(meshnet, *command, NO_COLOR="1")
    assert f"{ESCAPE}[38" not in plain
    assert "✕ revoked" in plain


def test_a_reader_that_has_had_enough_is_no_error(meshnet):
    with subprocess.Popen(
        [*MESHNET, "schema", "export"],
        env=meshnet.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=30) == 141


def test_a_label_cannot_steer_the_terminal_of_who_lists_it(meshnet):
    lab = Scenario()
    lab.enrol("evil", label=f"{ESCAPE}[2J{ESCAPE}[31mowned")
    path = meshnet.home / "evil.ndjson"
    path.write_bytes(b"".join(write_records(lab.records)))
    out = meshnet("audit", "replay", "--from", path).out
    assert "owned" in out
    assert ESCAPE not in out


def test_ndjson_is_one_row_a_line(meshnet):
    rows = meshnet("recipe", "list", "--from", HISTORY, "-o", "ndjson").out.splitlines()
    assert {json.loads(row)["recipe_key"]: json.loads(row)["status"] for row in rows} == EXPECTED[
        "recipes"
    ]


def test_exported_schemas_are_the_committed_ones(meshnet):
    meshnet("schema", "export", "--dir", "schemas")
    committed = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
    written = {path.name: path.read_bytes() for path in (meshnet.home / "schemas").iterdir()}
    assert written == {path.name: path.read_bytes() for path in committed.iterdir()}
    whole = meshnet("schema", "export").json
    assert whole == {name: json.loads(content) for name, content in written.items()}


def test_the_pages_written_are_the_committed_ones(meshnet):
    meshnet("schema", "pages", "--dir", "pages")
    committed = Path(__file__).parents[2] / "docs" / "reference"
    written = {path.name: path.read_bytes() for path in (meshnet.home / "pages").iterdir()}
    assert written.keys() == {"events.md", "reasons.md", "queries.md"}
    assert written == {name: (committed / name).read_bytes() for name in written}


def kept(meshnet, lab):
    path = meshnet.home / "lab.ndjson"
    path.write_bytes(b"".join(write_records(lab.records)))
    return path


def test_a_name_too_long_for_a_table_is_marked_the_same_in_every_list(meshnet):
    lab = Scenario()
    lab.enrol("n1", label="a-label-of-more-than-24-characters")
    lab.register("n1[0,14)")
    for command in (("audit", "replay"), ("shard", "list")):
        shown = meshnet(*command, "--from", kept(meshnet, lab)).out
        assert "a-label-of-more-than-24… " in shown


def test_a_node_without_a_label_has_one_name_and_is_found_by_it(meshnet):
    lab = Scenario()
    lab.register("n1[0,14)")
    name = f"{lab.public('n1')[:12]}…"
    path = kept(meshnet, lab)
    assert f"{name}/main" in meshnet("shard", "list", "--from", path).out
    assert f"{name}/main" in meshnet("audit", "replay", "--from", path).out
    lab.suspend("n1")
    path = kept(meshnet, lab)
    why = meshnet("shard", "why-not", f"{name}/main", "--from", path, code=1).out
    assert f"{name}/main may not serve" in why
    assert f"an operator suspended {name}." in " ".join(why.split())


STEERING = "\x1b[2J\x9b31m\u202eowned\nforged"


@pytest.mark.parametrize(
    "command",
    [
        ("recipe", "show"),
        ("recipe", "explain"),
        ("recipe", "list"),
        ("shard", "list"),
        ("shard", "why-not"),
        ("audit", "replay"),
        ("log",),
        ("route", "why-not"),
    ],
    ids=" ".join,
)
def test_a_label_steers_no_terminal_and_forges_no_line(meshnet, command):
    lab = Scenario()
    for name in ("evil", "other"):
        lab.enrol(name, label=STEERING, group=STEERING)
    lab.register("evil[0,14)", boot="1")
    lab.suspend("other")
    path = kept(meshnet, lab)
    key = meshnet("recipe", "list", "--from", path, "-o", "json").json["recipes"][0]["recipe_key"]
    subject = {
        ("shard", "why-not"): (f"{lab.public('evil')}/main",),
        ("recipe", "list"): (),
    }.get(command, (key,) if command[0] in {"recipe", "route"} else ())
    code = int("why-not" in command)
    for form in ("table", "json", "ndjson"):
        out = meshnet(*command, *subject, "--from", path, "-o", form, code=code).out
        assert all(each.isprintable() or each == "\n" for each in out), form
        assert not any(line.strip().startswith("forged") for line in out.split("\n")), form
    refused = meshnet("shard", "why-not", "nobody", "--from", path, code=5).err
    assert "forged" in refused
    assert not any(line.strip().startswith("forged") for line in refused.split("\n"))
    nodes = meshnet("audit", "replay", "--from", path, "-o", "json").json["nodes"]
    assert STEERING in [node["label"] for node in nodes]


def test_json_escapes_what_could_steer_a_terminal_beyond_the_first_plane_too(capsys):
    write_line({"text": "\x7f\x9b\u2066\U000e0001 é 漢"})
    out = capsys.readouterr().out
    assert out == '{"text":"\\u007f\\u009b\\u2066\\udb40\\udc01 é 漢"}\n'
    assert json.loads(out) == {"text": "\x7f\x9b\u2066\U000e0001 é 漢"}


def test_a_whole_key_names_its_node_whatever_others_are_labelled(meshnet):
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.enrol("n2", label=lab.public("n1"))
    lab.register("n2[14,28)")
    shards = meshnet(
        "shard", "list", "--node", lab.public("n1"), "--from", kept(meshnet, lab), "-o", "json"
    ).json["shards"]
    assert [shard["node"] for shard in shards] == [lab.public("n1")]


def test_what_to_do_about_a_fault_depends_on_its_cause(meshnet):
    other = ("--operator", EXPECTED["nodes"]["alpha"])
    refused = meshnet("audit", "replay", "--from", HISTORY, *other, code=3).err
    assert "is --operator the key that you were told?" in refused
    refused = meshnet("audit", "replay", "--from", HISTORY, "--realm", "other", code=3).err
    assert "is --realm right?" in refused


def test_records_that_are_no_sound_events_are_counted_as_such(meshnet):
    out = meshnet("audit", "replay", "--from", HISTORY).out
    assert "7 records are no sound signed events of this realm" in out
    lab = Scenario()
    lab.enrol("n1")
    assert "no sound" not in meshnet("audit", "replay", "--from", kept(meshnet, lab)).out


@pytest.mark.parametrize(
    "arguments",
    [
        f"route plan {RECIPE} --alternatives -1 --from {HISTORY}",
        "bench route --claims 0",
        "bench route --recipes 20000 --claims 10",
        "bench route --plans 1",
        "bench fold --records 0",
        "bench replay --rounds 0",
        "bench memory --nodes 1",
        "admin policy set",
    ],
)
def test_numbers_that_mean_nothing_are_wrong_usage(arguments, capsys):
    assert run(arguments.split()) == 2
    assert capsys.readouterr().out == ""


def test_tables_fit_80_columns_with_long_names_of_files(meshnet):
    path = meshnet.home / ("a-history-with-a-rather-long-name" * 2)
    path.write_bytes(HISTORY.read_bytes())
    for command in (
        ("recipe", "show", RECIPE),
        ("recipe", "explain", RECIPE),
        ("recipe", "list"),
        ("shard", "why-not", "alpha"),
        ("route", "why-not", RECIPE),
        ("admin", "policy", "show"),
        ("log",),
    ):
        out = meshnet(*command, "--from", path, code=int("why-not" in command)).out
        wide = [line for line in out.splitlines() if len(line) > 80 and path.name not in line]
        assert not wide, (command, wide)
        if command[0] != "log":
            assert " ".join(out.splitlines()[-2:]) == PRESENCE_NOTE


def test_the_log_says_in_which_boot_a_shard_came_to_life(meshnet):
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n1[0,14)", boot="2")
    rows = meshnet("log", "--from", kept(meshnet, lab), "-o", "ndjson").out.splitlines()
    told = [change for row in rows for change in json.loads(row)["transitions"] if "live" in change]
    lives = [change for change in told if "-> live" in change]
    assert len({change.rpartition("(boot ")[2] for change in lives}) == 2
    assert all(change.endswith(")") for change in lives)


@pytest.mark.parametrize(
    "command", [("shard", "why-not"), ("recipe", "explain"), ("route", "plan")]
)
def test_the_help_of_what_the_log_answers_says_what_the_log_does_not_know(meshnet, command):
    said = re.sub(r"[\s│]+", " ", meshnet(*command, "--help").out)
    assert "whether a process runs is not in the log" in said


@pytest.mark.parametrize("columns", [60, 40])
def test_in_a_narrow_terminal_nothing_is_dropped_and_no_name_is_cut(meshnet, columns):
    for command in (("recipe", "list"), ("shard", "list")):
        narrow = meshnet(*command, "--from", HISTORY, COLUMNS=str(columns)).out
        wide = meshnet(*command, "--from", HISTORY, COLUMNS="100").out
        assert set(wide.split()) <= set(narrow.split())
        assert "…" not in narrow


def test_no_line_is_filled_up_with_blanks(meshnet):
    for command in (("recipe", "list"), ("shard", "why-not", "alpha")):
        out = meshnet(*command, "--from", HISTORY, code=int("why-not" in command)).out
        assert [line for line in out.splitlines() if line.endswith(" ")] == []


def test_shards_are_listed_in_the_order_of_their_layers_and_told_what_their_status_does_not(
    meshnet,
):
    lab = Scenario()
    for number, layers in enumerate(("[14,28)", "[0,7)", "[7,14)"), start=1):
        lab.register(f"n{number}{layers}")
    lab.withdraw("n3")
    out = meshnet("shard", "list", "--from", kept(meshnet, lab)).out
    rows = [line.split("  ") for line in out.splitlines()[1:4]]
    assert [re.search(r"\[\d+, \d+\)", "  ".join(row))[0] for row in rows] == [
        "[0, 7)", "[7, 14)", "[14, 28)",
    ]  # fmt: skip
    said = [(row[-1].strip()) for row in rows]
    assert said == ["◐ dark", "dark", "◐ dark"]
    assert "◌ withdrawn" in out
    assert "withdrawn  withdrawn" not in re.sub(" +", "  ", out)
