"""A real nats-server on this machine, for `meshnet up`, the demo, benches and tests.

Everything of it lies in one directory, given or temporary (then removed at the end):

    nats.conf  server.log  lock  jetstream/

- It listens on loopback only, writes through to the disk before it acknowledges (`sync="always"`;
  the server's own default of two minutes is there for comparison), and takes no message larger than
  a realm's stream does.
- It ends with us. The kernel kills it when the thread that started it is gone (`PR_SET_PDEATHSIG`),
  so a `kill -9` of the parent leaves no server; a process group could not do that, for nobody is
  left to signal it. It has a process group of its own nonetheless, so that Ctrl-C in a terminal
  reaches us alone and we stop it when its clients are done.
- One server per directory: a second one on the same store would ruin it, and nats-server does not
  look.
- `start`, `stop`, `kill`, `pause`, `resume` and `restart` end and signal only what was started
  here.
"""

import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, Self

import anyio
import anyio.to_thread

from meshnet_bus.stream import MAX_MESSAGE

Sync = Literal["always", "2m"]

_LOOPBACK = "127.0.0.1"
# below the ports that the kernel gives to outgoing connections, which would take ours in a restart
_PORTS = range(20_000, 32_000)
_PORT_ATTEMPTS = 4
_READY_TIMEOUT_S = 15.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.01
_WATCH_S = 0.25
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class NoServer(Exception):
    """The local nats-server is not there or did not start; the message says what to do."""


def find_server() -> Path:
    """The nats-server beside this Python, else on PATH; raises `NoServer`."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.is_file():
        return beside
    if found := shutil.which("nats-server"):
        return Path(found)
    raise NoServer(
        "no nats-server beside this Python or on PATH; install it, in the checkout: "
        "pip install -e '.[server]'"
    )


class LocalServer:
    """One nats-server process. An async context manager: started inside, stopped after."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        sync: Sync = "always",
    ) -> None:
        """Without a directory a temporary one is used, without a port a free one."""
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="meshnet-nats-"))
        self._given_port = port
        self._port = port
        self._sync = sync
        self._name = f"meshnet-{secrets.token_hex(6)}"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: BinaryIO | None = None

    @property
    def port(self) -> int:
        """The port it listens on; the same after a restart."""
        if self._port is None:
            raise NoServer("the server was not started yet: it has no port")
        return self._port

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{_LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def log(self) -> Path:
        """What the server said."""
        return self.directory / "server.log"

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._clean_up()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop()
        finally:
            self._clean_up()

    async def start(self) -> None:
        """Start and wait until clients can use JetStream. Raises `NoServer`."""
        if self._process is not None:
            raise NoServer(f"the server is running already (pid {self._process.pid})")
        binary = find_server()
        self._take_directory()
        try:
            await self._start(binary)
        except BaseException:
            self._release_directory()
            raise

    async def _start(self, binary: Path) -> None:
        for _ in range(_PORT_ATTEMPTS):
            port = self._port or _free_port()
            self._spawn(binary, port)
            try:
                if await self._is_ready(port):
                    self._port = port
                    return
            except BaseException:
                self.kill()
                raise
            self._process = None
            # a port of ours that someone else took meanwhile: wait for it, others know the address
            if self._port is not None:
                await anyio.sleep(0.1)
        raise NoServer(
            f"nats-server did not start on {_LOOPBACK}:{self._port or 'any port'}:\n{self._last_words()}"
        )

    async def stop(self) -> None:
        """Stop in good order: clients are closed, files flushed. Kills it after five seconds."""
        process = self._process
        if process is None:
            return
        try:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            with anyio.move_on_after(_STOP_TIMEOUT_S, shield=True):
                while process.poll() is None:  # noqa: ASYNC110 - a process sets no event
                    await anyio.sleep(_POLL_S)
        finally:
            self.kill()

    async def ended(self) -> int:
        """Wait until the server has ended without being told to; its exit code."""
        process = self._running()
        while (code := process.poll()) is None:  # noqa: ASYNC110 - a process sets no event
            await anyio.sleep(_WATCH_S)
        return code

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL)."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Let it answer nothing while its connections stay open (SIGSTOP)."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # a signal is only on its way: one more request could still be answered
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._running().send_signal(signal.SIGCONT)

    async def restart(self) -> None:
        """Stop and start on the same port and store."""
        await self.stop()
        await self.start()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise NoServer("the server is not running")
        return self._process

    def _take_directory(self) -> None:
        if self._lock is not None:
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self.directory / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise NoServer(
                f"another process runs a server in {self.directory}; use that one, or another directory"
            ) from error
        self._lock = lock

    def _release_directory(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _spawn(self, binary: Path, port: int) -> None:
        config = self.directory / "nats.conf"
        config.write_text(
            f'server_name: "{self._name}"\n'
            f'listen: "{_LOOPBACK}:{port}"\n'
            f"max_payload: {MAX_MESSAGE}\n"
            f'jetstream {{ store_dir: "{self.directory}", sync_interval: "{self._sync}" }}\n'
        )
        with self.log.open("ab") as log:
            # preexec_fn is unsafe beside threads if it takes locks: this one makes two system calls
            self._process = subprocess.Popen(  # noqa: S603 - our own binary and file
                [binary, "-c", config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=_end_with(os.getpid()),  # noqa: PLW1509 - see above
            )

    async def _is_ready(self, port: int) -> bool:
        """Wait for the server's greeting. False when it gave up, as it does when the port is taken."""
        process = self._running()
        with anyio.move_on_after(_READY_TIMEOUT_S):
            while process.poll() is None:
                greeting = await anyio.to_thread.run_sync(_greeting, port)
                # by its name, because another server may have the port while ours is about to give up
                if self._name in greeting and '"jetstream":true' in greeting:
                    return True
                await anyio.sleep(_POLL_S)
            return False
        raise NoServer(
            f"nats-server was not ready within {_READY_TIMEOUT_S:g} s:\n{self._last_words()}"
        )

    def _last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-3:])

    def _clean_up(self) -> None:
        self.kill()
        self._release_directory()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)


def _free_port() -> int:
    """A port nobody listens on now. Someone may before we do: then another is tried."""
    while True:
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return port


def _greeting(port: int) -> str:
    """The first line that a server on `port` says, or nothing."""
    try:
        with socket.create_connection((_LOOPBACK, port), timeout=0.5) as connection:
            return connection.recv(4096).decode(errors="replace")
    except OSError:
        return ""


def _end_with(parent: int) -> Callable[[], None]:
    """What the child does before it becomes the server: ask to be killed when its parent is gone."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # gone between fork and the line above
            os._exit(1)

    return prepare
