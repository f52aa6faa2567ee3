"""The only home of NATS: connecting, the stream, writing, reading, asking, presence, the local server.

client        connecting, with a client that nothing a peer sends can stop
protocol      reading what a server sends, whatever bytes a peer put into it
replies       where an answer may go
api           requests to JetStream about one realm's stream, typed
stream        how the stream must be configured, and creating it
root          who created a realm
publisher     one issuer's events, each stored although acknowledgements get lost
outbox        the same through crashes, for a node
kept_chain    the piece of a chain that an outbox keeps, in agreement with the stream
outbox_file   its file
place         an issuer's place in its chain, judged
recovery      finding it: in the stream, or by a tracker's word
reader        every record once, in order, for ever
feed          the raw pull beneath it
history       is this still the history that was read?
service       answering queries, as a tracker
asker         asking them
discovery     what a service says of itself
presence      sending it, and hearing everybody's
local_server  a real nats-server on this machine
backoff       pauses between tries
groups        what ended a task group
limits        what plain nats-py can do at best, for benches
"""
