"""Sessions: how the shards of a route meet over gRPC, compute one forward, and vouch for it.

`meshnet_proto/shard_runtime.proto` says what goes over the wire and in which order. Here:

    opening     a `SessionOpen`, read and proven
    entrance    what a hop asks before it accepts one
    hop         the session at a hop: positions in, tokens back, reports, attestation
    responder   the gRPC service around it
    link        the caller's end of a session, for a hop that opens the next and for a driver
    driver      a route from end to end: prompt, tokens, evidence
    peers       what a tracker's answers mean for a session
    witness     a hop's word on the evidence
    node        what all sessions of a process share
    epochs      which epoch each session has come to, and what was attested
    retry       a neighbour that refused is met again
    waiting     nothing waits for ever
    transport   endpoints, TLS, gRPC's options
    failure     the one way in which a session fails

The comparison of fingerprints and what is published of it is `meshnet_node.handshake`; digests and
evidence are `meshnet_node.forward`. Both are pure.
"""
