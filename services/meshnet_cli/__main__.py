"""Runs one command: `meshnet …`. Exit codes and messages are those of `errors`."""

import gc
import os
import sys


def main() -> None:
    """Run the command line that this process was given, and exit."""
    code = run(sys.argv[1:])
    from meshnet_cli.leaving import end

    end(code)


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code."""
    # what we keep by the ten thousand holds no cycles: looking for some often is wasted
    gc.set_threshold(50_000, 20, 20)
    # gRPC would print its own lines beside what we say; it reads this when it is imported
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _forget_empty_variables()
    # one that was closed before we began: nobody reads it, and that is no reason to fail
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115 - it stays open
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115 - likewise
    for stream in (sys.stdout, sys.stderr):
        # a terminal that cannot show a glyph is no reason to fail
        stream.reconfigure(errors="replace")  # type: ignore[union-attr] # text files, both
    try:
        # importing is most of the time that starting takes, and Ctrl-C may come meanwhile
        from meshnet_cli.app import make_app

        result = make_app(arguments)(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the last place that can tell a person
        from meshnet_cli import errors
        from meshnet_cli.leaving import ToldToStop

        if errors.is_interrupted(error):
            return errors.INTERRUPTED
        if isinstance(error, ToldToStop):
            return error.code
        if errors.is_closed_pipe(error):
            # whoever read us has had enough; what is still buffered must not raise again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return errors.CLOSED_PIPE
        return errors.report(error)
    return result if isinstance(result, int) else 0


def _forget_empty_variables() -> None:
    """A variable of ours that is set to nothing names nothing: it counts as not set."""
    for name, value in tuple(os.environ.items()):
        if name.startswith("MESHNET_") and not value:
            del os.environ[name]


if __name__ == "__main__":
    main()
