"""Real node processes over a small real model: cut, enrolled, served, killed, as their owners would."""

import itertools
import json
import os
import signal
import subprocess
import time

from cli_kit import MESHNET, end, free_port
from meshnet_node.backends.reference.tiny import write_tiny_llama

LAYERS = 6
_PATIENCE_S = 40


class Served:
    """A `meshnet node serve` that runs: what it told, and its process."""

    def __init__(self, process, out, err, port):
        self.process, self.out, self.err, self.port = process, out, err, port

    @property
    def notices(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def told(self, kind, containing=""):
        """Wait until it has told this; the notice."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for notice in self.notices:
                if notice["kind"] == kind and containing in notice["text"]:
                    return notice
            assert self.process.poll() is None, self.err.read_text()
            time.sleep(0.05)
        raise AssertionError(f"it never told {kind} {containing!r}: {self.notices}")

    def ended(self):
        """Wait until it has ended by itself; its exit code and last words."""
        return self.process.wait(_PATIENCE_S), self.err.read_text()

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        return self.process.wait(_PATIENCE_S)


_numbers = itertools.count()


class Nodes:
    """Nodes of a realm that is up. Their model and labels are theirs alone, and so is their recipe."""

    def __init__(self, cli, home):
        self.cli, self.home, self.number = cli, home, next(_numbers)
        self.keys = {}
        self.running = []
        self.model = home / "tiny.gguf"
        write_tiny_llama(self.model, layers=LAYERS, seed=self.number)
        self.manifest = home / "recipes.toml"
        cli(
            "node", "manifest", self.model, "--backend", "reference-numpy",
            "--output", self.manifest,
        )  # fmt: skip

    def label(self, name):
        return f"{name}-{self.number}"

    def enrol(self, name, *, group=""):
        folder = self.home / name
        self.keys[name] = self.cli(
            "node", "init", "--dir", folder, "--label", self.label(name), "-o", "json"
        ).json["node"]
        self.cli("admin", "node", "enrol", folder, "--group", group or name)

    def start(self, name, layers, *options, host=None, port=None, directory=None):
        """Start to serve layers of the model; it may not be ready yet."""
        port = port or free_port()
        host = () if host is None else ("--declared-host", host)
        number = len(self.running)
        out, err = (self.home / f"{name}-{number}.{end}" for end in ("out", "err"))
        arguments = (
            "node", "serve", self.model, "--manifest", self.manifest, "--layers", layers,
            "--dir", directory or self.home / name, "--ask-every", 1, "-o", "ndjson", *host,
            *(options if "--endpoint" in options else
              ("--endpoint", f"grpc://127.0.0.1:{port}", *options)),
        )  # fmt: skip
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [*MESHNET, *map(str, arguments)],
                cwd=self.home,
                env=self.cli.env | {"OPENBLAS_NUM_THREADS": "1"},
                stdout=stdout,
                stderr=stderr,
            )
        served = Served(process, out, err, port)
        self.running.append(served)
        return served

    def serve(self, name, layers, *options, **more):
        """Start to serve, and wait for the registry's verdict."""
        served = self.start(name, layers, *options, **more)
        served.told("verdict")
        return served

    def stop(self):
        for served in self.running:
            if served.process.poll() is None:
                os.kill(served.process.pid, signal.SIGCONT)
                end(served.process, signal.SIGKILL)

    @property
    def recipe(self):
        """The one recipe of these nodes."""
        (key,) = {one["recipe_key"] for one in self._shards()}
        recipes = self.cli("recipe", "list", "-o", "json").json["recipes"]
        return next(one for one in recipes if one["recipe_key"] == key)

    def shard(self, name):
        return next(one for one in self._shards() if one["node"] == self.keys[name])

    def _shards(self):
        shards = self.cli("shard", "list", "-o", "json").json["shards"]
        return [one for one in shards if one["node"] in self.keys.values()]

    def log(self):
        """What these nodes said, with its outcomes."""
        records = self.cli("log", "-o", "json").json
        return [one for one in records if one["issuer"] in self.keys.values()]
