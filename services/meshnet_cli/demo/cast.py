"""The nodes of the demo: each a folder with its key, and processes run as their owner would run them.

Commands are `meshnet` itself, each in a process of its own with the node's directory and the demo's
profile in its environment. What a serving process tells comes as lines of JSON on its output; its
diagnostics go to a log in its folder.
"""

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from meshnet_cli.errors import CliError
from meshnet_node.serve import Notice

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The machine is shared by all of the demo's nodes: each gets by with one thread for BLAS."""

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0
_MAX_LINE = 1 << 20


class Done(Struct, frozen=True):
    """A command that ended: its exit code, and what it said."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The first line of what went wrong, without the program's name."""
        return next(iter(self.err.strip().splitlines()), "").removeprefix("meshnet: ")


class Actor:
    """A node: its name, its folder with its key, where it claims to run."""

    def __init__(self, name: str, key: str, folder: Path, host: str, profile: Path) -> None:
        self.name = name
        self.key = key
        self.folder = folder
        self.host = host
        self._profile = profile
        self._process: Process | None = None

    async def run(self, *arguments: str) -> Done:
        """Run one command as this node's owner."""
        return await run(self._profile, *arguments, MESHNET_NODE_DIR=str(self.folder))

    async def serve(self, model: Path, manifest: Path) -> tuple[Notice, ...]:
        """Start to serve a shard; what the process told until the registry's verdict.

        Raises `CliError` with its last words when it ends before.
        """
        log = (self.folder / "serve.log").open("wb")
        arguments = (
            "node", "serve", str(model), "--manifest", str(manifest), "--declared-host", self.host,
            "--endpoint", f"grpc://127.0.0.1:{free_port()}", "-o", "ndjson",
        )  # fmt: skip
        with log:
            self._process = process = await anyio.open_process(
                [sys.executable, "-m", "meshnet_cli", *arguments],
                stdout=PIPE,
                stderr=log,
                env=_environment(self._profile, MESHNET_NODE_DIR=str(self.folder)),
            )
        assert process.stdout is not None  # noqa: S101 - it was asked for
        lines = BufferedByteReceiveStream(process.stdout)
        told: list[Notice] = []
        with anyio.fail_after(_START_TIMEOUT_S), suppress(anyio.EndOfStream, anyio.IncompleteRead):
            while not told or told[-1].kind != "verdict":
                line = await lines.receive_until(b"\n", _MAX_LINE)
                told.append(msgspec.json.decode(line, type=Notice))
            return tuple(told)
        await process.wait()
        words = (self.folder / "serve.log").read_text(encoding="utf-8", errors="replace")
        raise CliError(f"{self.name}'s node ended: {words.strip()[-2000:]}")

    async def kill(self) -> None:
        """End the process as a power cut would."""
        if self._process is not None:
            self._process.kill()
            await self._process.aclose()

    async def stop(self) -> None:
        """Ask the process to take its leave, and end it if it does not."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with anyio.move_on_after(_STOP_TIMEOUT_S) as waited:
                await process.wait()
            if waited.cancelled_caught:
                process.kill()
        await process.aclose()


@asynccontextmanager
async def ending(actors: list[Actor]) -> AsyncIterator[None]:
    """However it comes out, no process of these actors is left."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for actor in actors:
                    tasks.start_soon(actor.stop)


async def run(profile: Path, *arguments: str, **environment: str) -> Done:
    """Run a command of `meshnet` to its end."""
    done = await anyio.run_process(
        [sys.executable, "-m", "meshnet_cli", *arguments],
        check=False,
        env=_environment(profile, **environment),
    )
    return Done(
        done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8", "replace")
    )


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(profile: Path, **more: str) -> dict[str, str]:
    """This process's environment, with nothing in it that means another realm."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
    return {**kept, **ONE_THREAD, "MESHNET_PROFILE": str(profile), **more}
