"""The tracker: folds the log into registry state, keeps it in views, and answers from it.

recipe      its own derivation of identity, sharing nothing with the node's
registry    the pure core: rules, eligibility, routes
views       the registry's rows in SQLite
projector   reads, folds, commits
"""
