"""Merkle trees, notes, checkpoints and state digests: what a log can prove about itself.

Empty in this release: the audit proofs are built on the registry's rows, which
`meshnet_tracker.snapshot` already spells one way.
"""
