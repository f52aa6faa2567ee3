"""The log-backed registry beside the in-memory model of its rules, through histories at random.

Both see the same registrations and forwards; after every step they agree on each recipe's status
and on what is certified. What only the log can express (revocations) takes its recipe out of the
comparison. After every step the registry's own invariants hold as well: the accounts add up, the
indexes are what the rows say, nothing names a boot that is history, every row that changed was
announced, and folding the same records from the first on gives the same rows.
"""

from collections.abc import Iterator

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit import Scenario, boot_of, fingerprint_of, identity_block, rows_of
from meshnet_events import facts
from meshnet_node.recipe_identity import (
    DistributedForwardEvidence,
    RecipeNotCertified,
    RecipeRegistry,
    ShardIdentity,
)
from meshnet_tracker.registry.rows import Claim

LAYERS = 6
NODES = ("n1", "n2", "n3")
RECIPES = {"A": {}, "B": {"runtime_version": "next"}}
BLOCKS = {name: identity_block(layers=LAYERS, axes=RECIPES[name]) for name in RECIPES}
KEYS = {name: fingerprint_of(block) for name, block in BLOCKS.items()}
IDENTITIES = {name: ShardIdentity.from_dict(block) for name, block in BLOCKS.items()}
SHARD_IDS = ("a", "b")

nodes = st.sampled_from(NODES)
recipes = st.sampled_from(sorted(RECIPES))
shard_ids = st.sampled_from(SHARD_IDS)
rarely = st.sampled_from([False, False, False, False, True])
ranges = st.sampled_from([(0, 3), (3, 6), (0, 6), (2, 6), (0, 4), (1, 5)])
SPOILT = ("synthetic", "no-tokens", "duplicate-node", "too-few-nodes", "coverage")


class Registries(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.lab = Scenario(verify=False)
        self.model = RecipeRegistry()
        self.only_in_the_log: set[str] = set()
        self.boots = dict.fromkeys(NODES, 1)
        self.evidences: dict[str, facts.Evidence] = {}
        self.lab.state.take_changes()
        self.before = rows_of(self.lab.state)
        self.chains_before = dict(self.lab.state.chains)

    # -- what both can express -----------------------------------------------------------------

    @initialize(split=st.sampled_from([(("A", 3),), (("B", 2), ("A", 4)), ()]))
    def enrol(self, split):
        """Enrol all, and mostly begin with recipes that can be certified at once."""
        for node in NODES:
            self.lab.enrol(node)
        for shard_id, (recipe, cut) in zip(SHARD_IDS, split, strict=False):
            for node, layers in (("n1", (0, cut)), ("n2", (cut, LAYERS))):
                self._register(node, shard_id, recipe, layers)

    @rule(
        node=nodes,
        shard_id=shard_ids,
        recipe=recipes,
        layers=ranges,
        restarts=rarely,
        moves=rarely,
        fault=st.sampled_from([None, None, None, None, "proof", "identity"]),
    )
    def register(self, node, shard_id, recipe, layers, restarts, moves, fault):
        self._register(node, shard_id, recipe, layers, restarts, moves, fault)

    @rule(drawn=st.data(), spoilt=st.none() | st.sampled_from(SPOILT), silent=st.booleans())
    @precondition(lambda self: any(self._all_chains()))
    def forward(self, drawn, spoilt, silent):
        recipe, chain = drawn.draw(st.sampled_from(list(self._all_chains())))
        evidence = self._evidence(recipe, chain, spoilt)
        names = [self.lab._names[claim.node] for claim, _, _ in chain]
        attesting = names[1:] if silent else names
        outcomes = [self.lab.attest(name, evidence).outcome for name in attesting]

        model = _as_model(evidence)
        if spoilt is not None:
            assert outcomes == [f"evidence:{spoilt}"] * len(attesting)
            assert model.rejection().code == spoilt
            return
        assert model.rejection() is None
        if silent or self.lab.recipe(KEYS[recipe].key).status == "revoked":
            return
        if not all(map(self._is_able, names)):
            assert outcomes[-1] in {"evidence:hop", "suspended"}
            return
        if len({claim.host.id for claim, _, _ in chain}) < 2:
            assert outcomes[-1] == "evidence:policy-hosts"
            return
        assert outcomes == ["applied"] * len(names)
        self.model.certify(IDENTITIES[recipe], model)

    @rule(recipe=recipes)
    @precondition(lambda self: len(self.lab.state.recipes) < len(RECIPES))
    def forward_of_nobody(self, recipe):
        """Evidence whose hops no claim backs certifies nothing; the model needs the recipe known."""
        evidence = self.lab.evidence("n1/none[0,3)", "n2/none[3,6)", layers=LAYERS, of=KEYS[recipe])
        then = self.lab.attest("n1", evidence)
        assert then.outcome in {"unknown-recipe", "revoked", "evidence:hop", "suspended"}
        if then.outcome == "unknown-recipe":
            forward = DistributedForwardEvidence("s", 0, ("n1", "n2"), ((0, 3), (3, 6)), 1, LAYERS)
            try:
                self.model.certify(IDENTITIES[recipe], forward)
            except RecipeNotCertified:
                return
            raise AssertionError("the model certified what it does not know")

    # -- what only the log can express ---------------------------------------------------------

    @rule(node=nodes, shard_id=shard_ids)
    def withdraw(self, node, shard_id):
        self.lab.withdraw(node, shard_id)

    @rule(node=nodes, peer=nodes, recipe=recipes, accepted=st.booleans())
    def handshake(self, node, peer, recipe, accepted):
        self.lab.handshake(node, peer, accepted=accepted, local=KEYS[recipe])

    @rule(node=nodes)
    def suspend(self, node):
        self.lab.suspend(node)

    @rule()
    @precondition(lambda self: any(not self._is_able(node) for node in NODES))
    def reinstate(self):
        for node in NODES:
            if self.lab.reinstate(node).outcome == "applied":
                self.boots[node] += 1

    @rule(node=nodes, ahead=st.integers(1, 3))
    def restart_chain(self, node, ahead):
        head = self.lab.heads[node].issuerseq if node in self.lab.heads else 0
        self.lab.enrol(node, label="restarted", chain_from=head + ahead)

    @rule(drawn=st.data(), node=nodes)
    @precondition(lambda self: self.lab.state.evidence)
    def attest_pending(self, drawn, node):
        """A participant, or somebody else, attests what is pending, or another word of it."""
        digests = sorted(self.lab.state.evidence)
        row = self.lab.state.evidence[drawn.draw(st.sampled_from(digests))]
        evidence = self.evidences[row.route_session_id]
        if drawn.draw(st.booleans()):
            evidence = msgspec.structs.replace(evidence, tokens_generated=99)
        then = self.lab.attest(node, evidence)
        if then.moves:  # it completed what one participant had left open
            (name,) = (name for name, key in KEYS.items() if key.key == row.recipe_key)
            self.model.certify(IDENTITIES[name], _as_model(evidence))

    @rule(recipe=recipes, back=st.booleans(), really=rarely)
    def revoke(self, recipe, back, really):
        if not really:
            return
        key = KEYS[recipe].key
        then = self.lab.reinstate_recipe(key) if back else self.lab.revoke(key)
        if then.outcome == "applied":
            self.only_in_the_log.add(recipe)

    # -- what holds after every step -----------------------------------------------------------

    @invariant()
    def the_two_agree(self):
        for name in set(RECIPES) - self.only_in_the_log:
            row = self.lab.state.recipes.get(KEYS[name].key)
            status = "unknown" if row is None else row.status
            assert status == self.model.status(IDENTITIES[name]).status, name
        certified = {
            (row.model_artifact_digest, row.runtime_recipe_digest)
            for row in self.lab.state.recipes.values()
            if row.status == "certified"
        }
        comparable = {KEYS[name] for name in set(RECIPES) - self.only_in_the_log}
        of_model = {fingerprint.key for fingerprint in self.model.certified_fingerprints()}
        assert certified & comparable == of_model & comparable

    @invariant()
    def the_accounts_add_up(self):
        state = self.lab.state
        assert sum(state.counts.values()) == state.sequence == len(self.lab.records)

    @invariant()
    def indexes_are_what_the_rows_say(self):
        state = self.lab.state
        live: dict[str, dict[tuple[str, str], Claim]] = {}
        for claim in state.all_claims():
            if claim.status == "live":
                live.setdefault(claim.recipe_key, {})[claim.node, claim.shard_id] = claim
        assert _filled(state.live_claims) == live
        for key, claims in live.items():
            assert all(state.live_claims[key][one] is claim for one, claim in claims.items())

        held: dict[str, dict[str, Claim]] = {}
        for (node, shard_id), claim in ((key, c) for by in live.values() for key, c in by.items()):
            held.setdefault(node, {})[shard_id] = claim
        assert _filled(state._live_of) == held

        refused: dict[str, set[tuple[str, str]]] = {}
        shaken: dict[str, set[tuple[str, str, str]]] = {}
        for key, row in state.handshakes.items():
            assert key == (row.node, row.peer, row.recipe_key)
            for node in key[:2]:
                shaken.setdefault(node, set()).add(key)
            if not row.accepted:
                refused.setdefault(row.recipe_key, set()).add(key[:2])
        assert _filled(state.refused_pairs) == refused
        assert _filled(state._handshakes_of) == shaken

        named: dict[str, set[str]] = {}
        pending: dict[tuple[str, str], set[str]] = {}
        for digest, row in state.evidence.items():
            assert digest == row.evidence_digest
            for hop in row.participants:
                named.setdefault(hop.node, set()).add(digest)
                if row.void is None:
                    pending.setdefault((hop.node, hop.shard_id), set()).add(digest)
        assert state._evidence_of == named
        assert state._pending_of == pending

    @invariant()
    def nothing_names_a_boot_that_is_history(self):
        state = self.lab.state

        def is_current(node, boot_id):
            return state.nodes[node].boot_id == boot_id and not state.is_superseded(node, boot_id)

        for claim in state.all_claims():
            if claim.status == "live":
                assert is_current(claim.node, claim.boot_id)
        for row in state.handshakes.values():
            assert is_current(row.node, row.boot_id)
            assert is_current(row.peer, row.peer_boot_id)
        for row in state.evidence.values():
            assert all(is_current(hop.node, hop.boot_id) for hop in row.participants)
        for node, said in state.attestations.items():
            assert not said or state.nodes[node].boot_id is not None

    @invariant()
    def a_node_in_no_conflict_is_on_one_host(self):
        hosts: dict[str, set[str]] = {}
        for claim in self.lab.state.all_claims():
            if claim.status == "live":
                hosts.setdefault(claim.node, set()).add(claim.host.id)
        for node, ids in hosts.items():
            assert len(ids) == 1 or self.lab.state.nodes[node].conflict

    @invariant()
    def pending_evidence_names_live_claims_only(self):
        state = self.lab.state
        for row in state.evidence.values():
            if row.void is None:
                assert state.recipes[row.recipe_key].status != "revoked"
                for hop in row.participants:
                    claim = state.claims[hop.node][hop.shard_id]
                    assert (claim.status, claim.boot_id) == ("live", hop.boot_id)

    @invariant()
    def every_row_that_changed_was_announced(self):
        changes, after = self.lab.state.take_changes(), rows_of(self.lab.state)
        before, self.before = self.before, after
        chains, self.chains_before = self.chains_before, dict(self.lab.state.chains)
        assert _differing(chains, self.chains_before) <= changes.chains
        for name in ("nodes", "recipes", "handshakes", "evidence"):
            assert _differing(before[name], after[name]) <= set(getattr(changes, name)), name
        assert _differing(_flat(before["claims"]), _flat(after["claims"])) <= changes.claims
        said = (
            {
                (node, *key): digest
                for node, by in rows["attestations"].items()
                for key, digest in by.items()
            }
            for rows in (before, after)
        )
        assert _differing(*said) <= set(changes.attestations)
        boots = (
            {(n, b) for n, of in rows["boots"].items() for b in of} for rows in (before, after)
        )
        old, new = boots
        assert old <= new, "a superseded boot never returns"
        assert new - old == set(changes.boots)
        assert len(changes.boots) == len(set(changes.boots))

    @invariant()
    @precondition(lambda self: len(self.lab.records) % 5 == 0)
    def folding_from_the_first_record_gives_the_same(self):
        again = self.lab.refold()
        assert rows_of(again) == rows_of(self.lab.state)
        assert (again.chains, again.counts) == (self.lab.state.chains, self.lab.state.counts)

    def teardown(self):
        self.folding_from_the_first_record_gives_the_same()

    # -- helpers -------------------------------------------------------------------------------

    def _register(self, node, shard_id, recipe, layers, restarts=False, moves=False, fault=None):
        self.boots[node] += restarts
        start, end = layers
        host = "elsewhere" if moves else f"of{node}"
        block = identity_block(start, end, layers=LAYERS, axes=RECIPES[recipe])
        if fault == "identity":
            block["shard_end"] = LAYERS + 1
        then = self.lab.register(
            f"{node}/{shard_id}@{host}[{start},{end})",
            boot=f"b{self.boots[node]}",
            block=block,
            capability={"status": "failed"} if fault == "proof" else {},
        )
        if then.outcome == "applied":
            self.model.register(ShardIdentity.from_dict(block))
        else:
            assert fault is not None or then.outcome in {"suspended", "stale-boot"}

    def _is_able(self, node):
        row = self.lab.state.nodes.get(self.lab.public(node))
        return row is not None and row.status == "enrolled"

    def _all_chains(self):
        return ((recipe, chain) for recipe in sorted(RECIPES) for chain in self._chains(recipe))

    def _chains(self, recipe, reached=0, used=()) -> Iterator[tuple[tuple[Claim, int, int], ...]]:
        """Every chain of at least two live claims of distinct nodes over the whole model."""
        if reached == LAYERS:
            if len(used) >= 2:
                yield used
            return
        for claim in self.lab.state.live_claims.get(KEYS[recipe].key, {}).values():
            start, end = claim.identity.shard_start, claim.identity.shard_end
            if claim.node in {one.node for one, _, _ in used} or not start <= reached < end:
                continue
            yield from self._chains(recipe, end, (*used, (claim, reached, end)))

    def _evidence(self, recipe, chain, spoilt):
        hops = [
            f"{self.lab._names[claim.node]}/{claim.shard_id}[{start},{end})"
            for claim, start, end in chain
        ]
        changes = {}
        match spoilt:
            case "synthetic":
                changes["synthetic"] = True
            case "no-tokens":
                changes["tokens_generated"] = 0
            case "duplicate-node":
                hops += [hops[0]]
            case "too-few-nodes":
                hops = hops[:1]
            case "coverage":
                changes["layer_count"] = LAYERS + 1
        session = f"s-{len(self.evidences)}"
        boots = {self.lab._names[claim.node]: claim.boot_id for claim, _, _ in chain}
        assert all(
            boot_of(name, self.lab.boots[name]) == boot_id for name, boot_id in boots.items()
        ), "live claims are of their node's last boot"
        evidence = self.lab.evidence(
            *hops, of=KEYS[recipe], session=session, **{"layer_count": LAYERS, **changes}
        )
        self.evidences[session] = evidence
        return evidence


def _as_model(evidence):
    return DistributedForwardEvidence(
        route_session_id=evidence.route_session_id,
        route_epoch=evidence.route_epoch,
        node_ids=tuple(hop.node for hop in evidence.hops),
        shard_ranges=tuple((hop.start, hop.end) for hop in evidence.hops),
        tokens_generated=evidence.tokens_generated,
        layer_count=evidence.layer_count,
        synthetic=evidence.synthetic,
    )


def _filled(index):
    return {key: rows for key, rows in index.items() if rows}


def _flat(rows):
    return {(node, key): row for node, by in rows.items() for key, row in by.items()}


def _differing(before, after):
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


Registries.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
test_the_registry_and_its_model_agree = Registries.TestCase
