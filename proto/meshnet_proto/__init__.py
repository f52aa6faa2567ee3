"""The wire between shards: `shard_runtime.proto` and the code generated from it.

The `.proto` file beside this module is the contract; a worker in another language needs it and
nothing else of ours. `shard_runtime_pb2.py` and its stub are generated and committed, so that
installing needs no compiler; `python -m meshnet_proto.generate` writes them again, and a test keeps
them from drifting apart.

Two versions take part in every recipe, because both change the numbers or the meaning of bytes
without changing the model. They rise by one when old and new may no longer compute together:

- `BUNDLE_VERSION` (axis `boundary_schema_version`): how activations and cache are laid out where
  two shards meet.
- `SCHEMA_VERSION` (axis `protocol_schema_version`): the messages themselves and the order they
  come in. Adding a message that an older peer can leave alone does not raise it.
"""

BUNDLE_VERSION = 1
SCHEMA_VERSION = 1
