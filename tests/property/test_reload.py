"""A state that was written to SQLite and read back goes on exactly as one that never was.

Random histories of nodes that behave, nodes that do not and an operator in a hurry; at random points
the state is committed, read back, and folding goes on from what was read. Outcomes, transitions,
rows, indexes and routes must be those of a fold that was never interrupted.
"""

import random

import anyio
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import Fingerprint, R, Scenario, digest
from meshnet_bus.history import FoldedPosition
from meshnet_events import facts
from meshnet_events.envelope import ChainHead
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.routing.plan import plan
from meshnet_tracker.registry.state import State
from meshnet_tracker.snapshot import rows_of, take_batch
from meshnet_tracker.views import Views

NODES = ("n1", "n2", "n3", "n4")
RECORDS = 120
# what SQLite, JSON or SQL could take for something else
TEXTS = ("s", "s\0a", "s\0b", "é𝄞", '\x7f"\\', "1", "null", " s", "s\n", "'; drop table claims")
RANGES = ("[0,14)", "[14,28)", "[0,28)", "[0,9)", "[9,28)")


class History:
    """A scenario, and the evidence that its nodes may still attest."""

    def __init__(self, chance) -> None:
        self.chance = chance
        self.lab = Scenario(verify=False)
        self.evidence: list[facts.Evidence] = []
        for node in NODES:
            self.lab.enrol(node)

    def step(self):
        """Whatever happens next."""
        kinds = {
            self.register: 30,
            self.withdraw: 6,
            self.shake_hands: 10,
            self.attest: 34,
            self.rule_on_a_node: 8,
            self.rule_on_the_recipe: 7,
            self.rule_on_the_realm: 5,
        }
        (kind,) = self.chance.choices(list(kinds), weights=list(kinds.values()))
        return kind()

    def register(self):
        chance, node = self.chance, self.chance.choice(NODES)
        more = {}
        if chance.random() < 0.1:
            more["capability"] = chance.choice([{"status": "failed"}, {"synthetic": True}])
        if chance.random() < 0.1:
            more["axes"] = {"kv_dtype": chance.choice(["f16", ""])}
        host = "elsewhere" if chance.random() < 0.06 else f"h{node}"
        shard = f"{node}/{chance.choice(['main', 'main', 'a'])}@{host}{chance.choice(RANGES)}"
        boot = chance.choice(["b1", "b2", "b3"]) if chance.random() < 0.06 else None
        return self.lab.register(shard, boot=boot, **more)

    def withdraw(self):
        return self.lab.withdraw(self.chance.choice(NODES))

    def shake_hands(self):
        chance = self.chance
        return self.lab.handshake(
            chance.choice(NODES),
            chance.choice(NODES),
            accepted=chance.random() < 0.5,
            session=chance.choice(TEXTS),
            local=chance.choice([R, Fingerprint(digest("z"), digest("y"))]),
        )

    def attest(self):
        chance, lab = self.chance, self.lab
        names = {lab.public(name): name for name in NODES}
        live = [c for c in lab.state.all_claims() if c.status == "live"]
        firsts = [c for c in live if c.identity.shard_start == 0]
        lasts = [c for c in live if c.identity.shard_end == 28]
        if firsts and lasts and (not self.evidence or chance.random() < 0.4):
            first, last = chance.choice(firsts), chance.choice(lasts)
            cut = max(1, min(first.identity.shard_end, last.identity.shard_start, 27))
            self.evidence.append(
                lab.evidence(
                    f"{names[first.node]}/{first.shard_id}[0,{cut})",
                    f"{names[last.node]}/{last.shard_id}[{cut},28)",
                    session=chance.choice(TEXTS[:4]),
                    tokens_generated=chance.randrange(1, 3),
                )
            )
        if not self.evidence:
            return self.register()
        evidence = chance.choice(self.evidence[-4:])
        return lab.attest(names[chance.choice(evidence.hops).node], evidence)

    def rule_on_a_node(self):
        chance, lab, node = self.chance, self.lab, self.chance.choice(NODES)
        if chance.random() < 0.7:
            return lab.reinstate(node) if chance.random() < 0.6 else lab.suspend(node)
        last = lab.heads.get(node, ChainHead()).issuerseq
        return lab.enrol(
            node,
            group=chance.choice(["", "g", "h\0"]),
            label=chance.choice(TEXTS),
            chain_from=chance.choice([None, last + 1, last + 5]),
        )

    def rule_on_the_recipe(self):
        if self.chance.random() < 0.4:
            return self.lab.revoke(by=self.chance.choice(["operator", "n1"]))
        return self.lab.reinstate_recipe()

    def rule_on_the_realm(self):
        chance, lab = self.chance, self.lab
        if chance.random() < 0.3:
            return lab.deliver(b'{"x":1}', chance.choice(NODES))
        return lab.policy(
            min_distinct_hosts=chance.choice([1, 2]),
            enrolment=chance.choice(["open", "required"]),
            certify=chance.choice(["recipe", "seams"]),
            accept_declared_hosts=chance.random() < 0.5,
        )


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), commit_every=st.integers(2, 40))
def test_a_state_that_was_read_back_goes_on_as_if_it_never_was(
    tmp_path_factory, seed, commit_every
):
    path = tmp_path_factory.mktemp("reload") / "views.db"
    anyio.run(_play, path, random.Random(seed), commit_every)


async def _play(path, chance, commit_every):
    history = History(chance)
    lab = history.lab
    other = Fold(State(lab.realm))
    for record in lab.records:
        other.apply(record, verify=False)
    committed = 0
    async with Views.open(path, lab.realm) as views:
        for _ in range(RECORDS):
            then = history.step()
            applied = other.apply(then.record, verify=False)
            assert applied.outcome.name == then.outcome
            assert applied.outcome.detail == then.detail
            assert applied.transitions == then.transitions
            if other.state.sequence - committed < commit_every:
                continue
            await views.commit(
                take_batch(other.state),
                before=committed,
                position=FoldedPosition("stream", other.state.sequence, "0" * 64),
            )
            committed = other.state.sequence
            other = Fold((await views.load()).state)
            assert rows_of(other.state) == rows_of(lab.state)
            assert indexes(other.state) == indexes(lab.state)
            for purpose in ("serve", "certify"):
                assert plan(other.state, R.key, purpose) == plan(lab.state, R.key, purpose)


def indexes(state):
    """What is derived from the rows, as far as it is not empty."""
    live = {
        key: {where: msgspec.json.encode(claim) for where, claim in claims.items()}
        for key, claims in state.live_claims.items()
        if claims
    }
    return live, {key: pairs for key, pairs in state.refused_pairs.items() if pairs}
