"""`meshnet demo`: what the registry is for, done once for real from end to end.

model    the model file, its cuts, and the recipe that it runs under
stage    a real nats-server, a real realm, a real tracker, all temporary
cast     the nodes: their folders, their processes, and commands as their owners type them
story    the steps
command  the command line
"""
