"""Measurements, each beside the raw limit that was measured in the same run.

command  the command line
result   what a bench prints
mix      the one mix of records that all run on
stream   a stream filled with it
fold     gate, verification and fold, in memory
replay   from the stream to committed views
publish  one node's events, signed and acknowledged
route    planning
forward  tokens over two node processes
memory   what registered shards hold, and that a long replay does not grow
"""
