"""The fold rules, a module for each family of facts.

Each rule is a function of the state, the fact and its cause. It checks in the order of its table
and returns at the first row that applies; it changes state only through the verbs of `State`, and
the members of no row that it has not touched.
"""
