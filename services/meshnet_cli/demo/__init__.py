"""`meshnet demo`: what the registry is for, told once from end to end.

model    the made-up model that the story is about
actors   scripted nodes: real keys, real signatures, real events, no model behind them
stage    a real nats-server, a real realm, a real projector, all temporary
story    the steps
command  the command line
"""
