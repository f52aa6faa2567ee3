"""One place that turns what went wrong into a message, what to do, and an exit code.

    0 ok    1 failed    2 usage    3 verification failed    4 unreachable    5 not found
    128 + N ended by signal N: 130 Ctrl-C    141 nobody reads the output any more

An error says what was tried and what was found (its own text does), then what to do (the table
below, unless the text says it). A traceback is never shown; `MESHNET_DEBUG=1` asks for it.

Exceptions go by name: naming the classes would import every service to report a typing error.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

from meshnet_cli.look import one_line, printable

OK = 0
FAILED = 1
USAGE = 2
VERIFICATION_FAILED = 3
UNREACHABLE = 4
NOT_FOUND = 5
INTERRUPTED = 130
CLOSED_PIPE = 141

_JETSTREAM_NO_SUCH_STREAM = 10059


class CliError(Exception):
    """What a command has to say itself: the message, what to do, and the exit code."""

    def __init__(self, message: str, advice: str = "", *, code: int = FAILED) -> None:
        super().__init__(message)
        self.advice = advice
        self.code = code


def not_found(what: str, wanted: str, candidates: Sequence[str], advice: str = "") -> CliError:
    """Nothing, or more than one thing, goes by `wanted`: say what there is."""
    shown = "".join(f"\n  {one_line(candidate)}" for candidate in candidates[:_CANDIDATES])
    if len(candidates) > _CANDIDATES:
        shown += f"\n  and {len(candidates) - _CANDIDATES} more"
    return CliError(f"{what}: {wanted}{shown}", advice, code=NOT_FOUND)


_CANDIDATES = 8

_FIND_OUT = "nothing was concluded from this history: find out who changed it"
_BY_FAULT = {
    "wrong-root": "is --operator the key that you were told? Nothing was concluded from this history",
    "bad-realm": "is --realm right? Nothing was concluded from this history",
}
_KNOWN: dict[str, tuple[int, str]] = {
    "meshnet_bus.client.Unreachable": (
        UNREACHABLE,
        "start a realm with `meshnet up`, or name its server with --server or MESHNET_SERVER",
    ),
    "meshnet_bus.api.ApiError": (FAILED, ""),
    "meshnet_bus.local_server.NoServer": (FAILED, ""),
    "meshnet_bus.history.HistoryFault": (VERIFICATION_FAILED, _FIND_OUT),
    "meshnet_tracker.registry.outcome.FoldFault": (VERIFICATION_FAILED, _FIND_OUT),
    "meshnet_bus.root.WrongRoot": (VERIFICATION_FAILED, _BY_FAULT["wrong-root"]),
    "meshnet_bus.stream.StreamDrift": (VERIFICATION_FAILED, ""),
    "meshnet_bus.stream.RealmExists": (FAILED, ""),
    "meshnet_bus.place.KeyInUse": (FAILED, ""),
    "meshnet_bus.place.PlaceLost": (FAILED, ""),
    "meshnet_bus.publisher.NotAcknowledged": (
        UNREACHABLE,
        "look with `meshnet log` whether it was stored before stating it again",
    ),
    "meshnet_bus.outbox_file.OutboxInUse": (
        FAILED,
        "stop the other process, or name another --dir",
    ),
    "meshnet_bus.asker.QueryRefused": (UNREACHABLE, "that is what a tracker said: ask again"),
    "meshnet_bus.outbox_file.OutboxError": (FAILED, ""),
    "meshnet_bus.outbox.OutboxStopped": (FAILED, ""),
    "meshnet_node.serve.BootIsOver": (FAILED, "start it again if it is this process that is meant"),
    "meshnet_node.serve.NotAdmitted": (FAILED, ""),
    "meshnet_node.session.responder.CannotListen": (FAILED, "name a free port with --endpoint"),
    "meshnet_tracker.views.ViewsError": (FAILED, ""),
    "meshnet_auditor.source.SourceError": (FAILED, "get the history again from where it came"),
    "meshnet_node.pin.errors.NoSuchFile": (NOT_FOUND, ""),
    "meshnet_node.pin.errors.PinError": (FAILED, ""),
    "meshnet_node.recipe_identity._checks.RecipeIdentityError": (
        FAILED,
        "correct the identity block; `meshnet node pin` writes what a model file decides",
    ),
    "meshnet_node.targets.LockedTargetError": (FAILED, ""),
    "meshnet_node.capability.CapabilityReportError": (FAILED, ""),
    "meshnet_node.backends.BackendError": (FAILED, ""),
    "meshnet_node.recipe_manifest.RecipeManifestError": (FAILED, ""),
    "meshnet_node.doctor.expected.ExpectedError": (FAILED, ""),
    "meshnet_node.doctor.declare.CannotDeclare": (FAILED, ""),
    "meshnet_node.host.NoMachineId": (FAILED, ""),
    "meshnet_node.host.NoHostName": (
        USAGE,
        "name the machine with --declared-host, or leave it out",
    ),
    "meshnet_node.admission.CapabilityAdmissionError": (FAILED, "nothing was published"),
    "meshnet_events.keys.BadKey": (FAILED, ""),
    "cyclopts.completion.detect.ShellDetectionError": (
        USAGE,
        "name it: `meshnet --install-completion --shell bash` (or zsh, or fish)",
    ),
    "builtins.FileNotFoundError": (NOT_FOUND, ""),
    "builtins.PermissionError": (FAILED, "change its permissions, or run as its owner"),
    "builtins.OSError": (FAILED, ""),
}


def fault_advice(fault: BaseException, otherwise: str = _FIND_OUT) -> str:
    """What to do about a fault, by its cause: what was asked may be at fault, not the history."""
    return _BY_FAULT.get(str(getattr(fault, "reason", "")), otherwise)


def report(error: BaseException) -> int:
    """Tell a person on stderr what went wrong and what to do; the exit code."""
    message, advice, code = explain(error)
    with suppress(OSError):  # nobody reads it any more: the code still has to get out
        print(f"meshnet: {printable(message)}", file=sys.stderr)  # noqa: T201 - this is the one place
        if advice:
            print(f"  {advice}", file=sys.stderr)  # noqa: T201 - as above
        if os.environ.get("MESHNET_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
    return code


def is_closed_pipe(error: BaseException) -> bool:
    """Whether it is that nobody reads the output any more."""
    return isinstance(_cause_in(error), BrokenPipeError)


def is_interrupted(error: BaseException) -> bool:
    """Whether it is Ctrl-C, or came of it: whoever imports a module may hear of another error."""
    return any(
        isinstance(one, KeyboardInterrupt) for one in (error, *_behind(error, implicit=True))
    )


def explain(error: BaseException) -> tuple[str, str, int]:
    """Message, advice (may be empty) and exit code of what went wrong."""
    error = _cause_in(error)
    if isinstance(error, CliError):
        return str(error), error.advice, error.code
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if "cyclopts.exceptions.CycloptsError" in names:
        return *_usage(error), USAGE
    if getattr(error, "err_code", None) == _JETSTREAM_NO_SUCH_STREAM:
        return (
            "this server holds no such realm",
            "make one with `meshnet up`, or name another with --realm or --server",
            NOT_FOUND,
        )
    if isinstance(error, ImportError):
        return (
            f"a part that this command needs is not installed: {error}",
            "install it, in the checkout: pip install -e '.[server,reference]'",
            FAILED,
        )
    for name in names:
        if name in _KNOWN:
            code, advice = _KNOWN[name]
            return _text_of(error), fault_advice(error) if advice == _FIND_OUT else advice, code
    return (
        f"an error of meshnet's own: {type(error).__name__}: {error}",
        "please report it, with what MESHNET_DEBUG=1 shows",
        FAILED,
    )


def _cause_in(error: BaseException) -> BaseException:
    """What went wrong in a group: the one leaf that all others were raised from; else the group."""
    from meshnet_bus.groups import leaves

    found = leaves(error)
    causes = [one for one in found if not any(cause in found for cause in _behind(one))]
    return causes[0] if len(causes) == 1 else error


def _behind(error: BaseException, *, implicit: bool = False) -> Iterator[BaseException]:
    """What `error` was raised from, and that in turn; with `implicit`, also while what was handled."""
    seen = [error]
    while True:
        before = error.__cause__ or (error.__context__ if implicit else None)
        if before is None or any(before is one for one in seen):  # one may be its own cause
            return
        error = before
        seen.append(error)
        yield error


def _usage(error: BaseException) -> tuple[str, str]:
    """Message and advice of what the command line's library could not make sense of."""
    if type(error).__name__ == "UnusedCliTokensError":
        words = [str(word) for word in getattr(error, "unused_tokens", None) or ()]
        shown = " ".join(repr(word[:_WORD]) for word in words[:_WORDS])
        more = f" and {len(words) - _WORDS:,} more" if len(words) > _WORDS else ""
        return (
            f"more words than it takes: {shown}{more}",
            'a text of several words is put in quotes: "like this"; `--help` says what it takes',
        )
    try:
        text = str(error)
    except ImportError:  # its suggestions import every command there is
        text = "there is no such command"
    # of many commands it would list some
    text = _SOME_COMMANDS.sub("", text)
    return text, "`--help` after any command or group says what it takes"


_WORDS, _WORD = 3, 24
_SOME_COMMANDS = re.compile(r" Available commands: [^:]*, \.\.\.\Z")


def _text_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without its number, which is no word of ours
    return str(error) or repr(error)
