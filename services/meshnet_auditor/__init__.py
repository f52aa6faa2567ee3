"""The auditor: the same log, folded by someone who need not trust operator, broker or tracker.

source    records from a file, without any broker
replay    a history folded to a point, and the report of what held there
"""
