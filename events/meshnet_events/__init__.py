"""The contract: what two programs must agree on to share one realm, and nothing that does IO.

A stranger with this package's page (`docs/reference/events.md`), a JSON library and Ed25519 can
write a node or an auditor in any language. It reads no clock, no file, no network and no random
source: time and chance are arguments.

    keys             NKey public keys and signing keys as text and bytes
    subjects         every subject and stream name
    reasons          every code an outcome can carry
    forms            what a member of a fact must look like
    facts            what can happen, as frozen structs
    envelope         the signed bytes of an event: build and digest
    gate             bytes in, event or refusal out, whatever the bytes: the fast path
    diagnosis        the slow path, which finds the one right reason
    screened         what the gate says, and how an event continues its chain
    record           an event with what the broker added
    admission        does this proof cover what is about to be advertised?
    enrolment        a node's signed request to be enrolled
    host             which machine is under a node, as a realm may know it
    session          what two shards prove to one another when they meet
    upcast           older versions of facts brought forward
    presence         liveness, outside the log
    queries          what a tracker is asked over NATS, and the bytes of both sides
    answers          what a tracker answers: verdicts, no evidence
    schema           JSON Schema and AsyncAPI 3, generated
    reference        the page of events, generated
    query_reference  the page of queries, generated
    markdown         how generated pages show members
"""
