"""The doctor: is this node fit to register, and if not, what is to be done?

Three rows of checks, of the shard, the machine and the realm, each its own call, for they are made in
different ways: the shard's block for as long as it takes to load and compute, the realm's wait for
others, over a connection that would not outlast such a load. `serve` needs the shard's alone.

    shard = examine_shard(ShardQuestion(files=(path,), manifest=recipes))      # blocks: load, compute
    machine = examine_machine(MachineCase(directory=NodeDirectory(folder)))
    realm = await examine_realm(RealmCase(node=key.public, ask_clock=…, …))
    diagnosis = joined(shard, machine, realm)
    diagnosis.verdict        # passed; not checked: endpoint
    diagnosis.report         # what `admit` and the registration take

Whoever goes on to serve the shard keeps it: `with examined_shard(question) as examined`.

    finding     Finding, Diagnosis
    check       a check, a row of them, and what becomes of an exception
    expected    what the files should be
    shard       files, recipe, backend: what is to be proven
    proof       load, version, layout, text, forward: the proof, and its report
    machine     credentials, host, disk
    realm       clock, tracker, endpoint
    asking      how the realm is asked in earnest, over NATS and gRPC
    declare     a recipe to start from

Nothing is changed by any of them. Left out: whether a report admits a registration
(`meshnet_node.admission`).
"""

from meshnet_node.doctor.check import Check, Telling
from meshnet_node.doctor.expected import Expected, ExpectedError, read_expected
from meshnet_node.doctor.finding import Diagnosis, Finding, FindingStatus
from meshnet_node.doctor.machine import MachineCase, examine_machine
from meshnet_node.doctor.proof import probe_capability
from meshnet_node.doctor.realm import EndpointProbe, RealmCase, examine_realm
from meshnet_node.doctor.shard import (
    ExaminedShard,
    ShardQuestion,
    examine_shard,
    examined_shard,
)

__all__ = [
    "Check",
    "Diagnosis",
    "EndpointProbe",
    "ExaminedShard",
    "Expected",
    "ExpectedError",
    "Finding",
    "FindingStatus",
    "MachineCase",
    "RealmCase",
    "ShardQuestion",
    "Telling",
    "examine_machine",
    "examine_realm",
    "examine_shard",
    "examined_shard",
    "joined",
    "probe_capability",
    "read_expected",
]


def joined(*parts: Diagnosis) -> Diagnosis:
    """One diagnosis of several, with the identity and the report of the first that has them."""
    proven = next((part for part in parts if part.report is not None), Diagnosis(()))
    findings = tuple(finding for part in parts for finding in part.findings)
    return Diagnosis(findings, proven.identity, proven.report)
