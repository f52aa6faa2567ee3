"""Routes: chains of claims that may compute together, or every reason why there are none.

problem      what a search is given, and how its demands are relaxed one by one
serving      the best route to serve: dynamic programming over interchangeable claims
certifying   the best route to certify: a search under the policy's demands
plan         from the state to a `Route`, or to `NoRoute` with its obstacles
"""
