"""A pair that refused is met again, by either side, with a session in which nothing is computed."""

import uuid

import msgspec
import pytest

from meshnet_bus.client import Unreachable
from meshnet_node.handshake import FIRST_RETRY_S
from meshnet_node.session.failure import SessionFailed
from meshnet_node.session.retry import try_again
from session_kit import LAYERS, RECIPE, SHOOK_HANDS, lab, served, tokens_of

OTHER = msgspec.structs.replace(RECIPE, kv_layout="padded-584")


class Pair:
    """Two nodes of which one ran another recipe than its tracker listed, and can be mended."""

    def __init__(self, lab_, left, right, wrong):
        self.lab, self.left, self.right = lab_, left, right
        self.wrong = getattr(self, wrong)
        self.sound = left if wrong == "right" else right

    @classmethod
    async def that_refused(cls, lab_, *, wrong="right"):
        recipes = {"left": RECIPE, "right": RECIPE, wrong: OTHER}
        left = await lab_.start(0, 3, recipe=recipes["left"])
        right = await lab_.start(3, LAYERS, recipe=recipes["right"])
        pair = cls(lab_, left, right, wrong)
        # a tracker that lags thinks that both run what the left one does, so the two do meet
        pair.all_are_thought_to_run(recipes["left"])
        with pytest.raises(SessionFailed):
            async with lab_.open(
                left.hop(), right.hop(), caller=lab_.caller(recipe=recipes["left"])
            ):
                pass
        assert pair.last_words() == [False, False]
        pair.all_are_thought_to_run(RECIPE)
        return pair

    def all_are_thought_to_run(self, recipe):
        tracker = self.lab.tracker
        for part in (self.left, self.right):
            tracker.lists(part, recipe_digest=recipe.runtime_recipe_digest)
            tracker.nodes[part.key.public] = msgspec.structs.replace(
                tracker.nodes[part.key.public], shards=("main",)
            )

    def mend(self):
        """The wrong one runs, in the same boot, what everyone thought that it did."""
        loaded = self.wrong.shard.loaded
        mended = served("main", loaded.start, loaded.end, loaded=loaded)
        self.wrong.node.shards["main"] = self.wrong.shard = mended

    def last_words(self):
        return [part.said.of(SHOOK_HANDS)[-1].accepted for part in (self.left, self.right)]


def due(part, after_s):
    now = part.node.monotonic_s()
    return part.node.results.due(now_s=now + after_s)


async def test_a_refusal_is_tried_again_after_a_minute_and_not_before():
    async with lab() as lab_:
        pair = await Pair.that_refused(lab_)
        assert due(pair.left, FIRST_RETRY_S - 5) == ()
        assert len(due(pair.left, FIRST_RETRY_S)) == 1


@pytest.mark.parametrize("wrong", ["left", "right"])
async def test_once_mended_both_sides_say_so_whichever_asks_and_they_compute_again(wrong):
    async with lab() as lab_:
        pair = await Pair.that_refused(lab_, wrong=wrong)
        pair.mend()
        (refused,) = due(pair.sound, FIRST_RETRY_S)
        await try_again(pair.sound.node, refused)
        assert pair.last_words() == [True, True]
        async with lab_.open(pair.left.hop(), pair.right.hop()) as route:
            assert len(await tokens_of(route, (1, 2), 2)) == 2


async def test_a_pair_that_still_differs_says_nothing_new_and_waits_longer():
    async with lab() as lab_:
        pair = await Pair.that_refused(lab_)
        before = [len(part.said) for part in (pair.left, pair.right)]
        (refused,) = due(pair.left, FIRST_RETRY_S)
        await try_again(pair.left.node, refused)
        assert [len(part.said) for part in (pair.left, pair.right)] == before
        # asked for at one minute, it is put off for two
        assert due(pair.left, 2.9 * FIRST_RETRY_S) == ()
        assert len(due(pair.left, 3.1 * FIRST_RETRY_S)) == 1


async def test_a_claim_that_makes_no_sense_ends_nothing_and_the_pair_is_tried_the_next_time(caplog):
    async with lab() as lab_:
        pair = await Pair.that_refused(lab_)
        pair.mend()
        key = (pair.right.key.public, "main")
        sound = lab_.tracker.claims[key]
        lab_.tracker.claims[key] = msgspec.structs.replace(sound, start=-1, end=2**40)
        (refused,) = due(pair.left, FIRST_RETRY_S)
        await try_again(pair.left.node, refused)
        assert "for a reason that nobody foresaw" in caplog.text
        assert pair.last_words() == [False, False]
        lab_.tracker.claims[key] = sound
        (refused,) = due(pair.left, 3.1 * FIRST_RETRY_S)
        await try_again(pair.left.node, refused)
        assert pair.last_words() == [True, True]


async def test_a_peer_that_is_gone_or_a_tracker_that_is_silent_is_left_alone():
    async with lab() as lab_:
        pair = await Pair.that_refused(lab_)
        (refused,) = due(pair.left, FIRST_RETRY_S)
        said = len(pair.left.said)
        lab_.tracker.silent = Unreachable("nobody answers")
        await try_again(pair.left.node, refused)
        lab_.tracker.silent = None
        lab_.tracker.knows(pair.right.key.public, str(uuid.uuid4()))
        await try_again(pair.left.node, refused)
        assert len(pair.left.said) == said
