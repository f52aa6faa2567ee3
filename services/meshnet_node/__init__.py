"""What runs beside a shard: identity, proof, and the events that say so.

    recipe_identity   exactly which artifact and recipe: the node's own derivation
    pin               real model files turned into identity
    targets           locked targets: the digests that one model's files must have
    capability        what a doctor's forward proved, as a report
    admission         does the report cover what is about to be registered?
    files             a file replaced whole
    testing           explicit validators, for tests

It leans on the bus and the contract, and never on a tracker.
"""
