"""What runs beside a shard: identity, proof, and the events that say so.

    recipe_identity   exactly which artifact and recipe: the node's own derivation
    pin               real model files turned into identity
    targets           locked targets: the digests that one model's files must have
    recipe_manifest   the recipes that a node may run, declared in TOML
    backends          what computes layers, found by entry point
    challenge         what is fed to a shard on trial, and how its numbers are read
    shard_facts       what a loaded shard says of itself, asked once
    running           what runs, held against what a recipe declares
    probe             a bounded real forward, judged
    doctor            every check of shard, machine and realm, with what to do
    capability        what a doctor's forward proved, as a report
    admission         does the report cover what is about to be registered?
    registration      the fact that registers a shard, once its proof was admitted
    handshake         results of comparing fingerprints with neighbours
    forward           what a distributed forward leaves behind: digests, evidence, attestation
    session           shards meet over gRPC, compute one forward, and vouch for it
    serve             a node at work, from registration to withdrawal
    host              which machine this is
    directory         what is kept in a node's directory, and under which name
    key_file          a key in a file that its owner alone may read
    foreign           what code that is not ours says, as bounded texts
    files             files read and replaced whole
    testing           explicit validators, for tests

It leans on the bus and the contract, and never on a tracker.
"""
