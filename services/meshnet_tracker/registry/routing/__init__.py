"""Routes: chains of claims that may compute together, or every reason why there are none.

problem      what a search is given, and how its demands are waived one by one
chart        the ways on from every layer, and their least cost
search       the best chain of claims, to serve or to certify
obstacles    why there is none: the fewest demands that would have to give way
plan         from the state to a `Route`, or to `NoRoute` with its obstacles
"""
