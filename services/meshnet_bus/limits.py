"""What plain nats-py can do at best on a realm's stream: the limit that a bench shows ours beside."""

import asyncio
import contextlib
import secrets
import time

import anyio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from meshnet_events import subjects

_BATCH = 2_000
_IN_FLIGHT = 4 * _BATCH
_REQUEST = b'{"batch":%d,"expires":5000000000,"idle_heartbeat":1000000000}' % _BATCH
_CONNECT_TIMEOUT_S = 5.0


async def raw_pull_rate(url: str, realm: str, *, timeout_s: float = 120.0) -> float:
    """Records per second of a bare raw pull over the whole stream, with nats-py's own callback.

    It does nothing with a record but read its sequence and time, as any reader must, and check the
    sequence. Raises TimeoutError (nobody there, or the stream not read after `timeout_s`), and
    ValueError when the stream is empty.
    """
    stream = subjects.stream(realm)
    nc = Client()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(nc.close)
        with anyio.fail_after(_CONNECT_TIMEOUT_S):
            await nc.connect(url)
        js = nc.jetstream()
        total = (await js.stream_info(stream)).state.last_seq
        if not total:
            raise ValueError(f"{stream} is empty: there is nothing to measure")
        consumer = f"limit-{secrets.token_hex(8)}"
        await js.add_consumer(
            stream,
            ConsumerConfig(
                name=consumer,
                ack_policy=AckPolicy.NONE,
                deliver_policy=DeliverPolicy.ALL,
                mem_storage=True,
                num_replicas=1,
                inactive_threshold=30,
                max_waiting=16,
            ),
        )
        stack.push_async_callback(js.delete_consumer, stream, consumer)
        ask = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        inbox = nc.new_inbox()
        done = asyncio.Event()
        last = credit = 0

        async def on_message(message: Msg) -> None:
            nonlocal last, credit
            if not message.reply.startswith("$JS.ACK."):
                return
            sequence, _, _time_ns, _pending = map(int, message.reply.rsplit(".", 5)[-4:])
            if sequence == last + 1:
                last = sequence
            credit -= 1
            if credit <= _IN_FLIGHT - _BATCH:
                credit += _BATCH
                await nc.publish(ask, _REQUEST, reply=inbox)
            if last >= total:
                done.set()

        start = time.perf_counter()
        await nc.subscribe(inbox, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)
        for _ in range(_IN_FLIGHT // _BATCH):
            credit += _BATCH
            await nc.publish(ask, _REQUEST, reply=inbox)
        with anyio.fail_after(timeout_s):
            await done.wait()
        return total / (time.perf_counter() - start)
