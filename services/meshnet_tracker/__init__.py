"""The tracker: folds the log into registry state, keeps it in views, and answers from it.

recipe        its own derivation of identity, sharing nothing with the node's
registry      the pure core: rules, eligibility, routes
verification  checking many signatures at once
snapshot      the registry's rows as tables
views         those in one SQLite file, and how far they were folded
projector     reads, folds, commits
presence      who is alive: the overlay that eligibility and routes take
api           what it tells those who ask
metrics       what it counts
"""
