"""The registry: which machines may compute together, decided from the log and nothing else.

    rows          what the registry knows, as rows: the state is exactly these
    state         the rows, the indexes over them, and what changed since last asked
    identity      an identity block derived anew, and remembered
    rules         one module a family of facts: the tables of the specification, as code
    outcome       what the fold did with a record, or why it cannot go on
    fold          one entry point: one record in, one outcome out
    eligibility   per claim: may it serve, may it certify, and every reason why not
    coverage      which layers are held, how often, and where the holes are
    routing       chains of claims that may compute together, or why there are none
    summary       a recipe at a glance, made on demand
    explain       the sentences that people read

Pure: no clock, file, network, environment or chance. Time enters through the broker's timestamp on
a record. Liveness is an overlay that callers pass in, never part of the state.
"""
