"""The tree of commands. A command's module is imported when the command is called.

Groups and single commands are registered by the place where they are, with the line that lists them.
"""

from collections.abc import Sequence

from cyclopts import App, Parameter

_HELP = """A registry of who may compute one large model together, and the proof.

A *realm* is one log of signed facts. Nodes register the layers that they hold, with a proof; trackers
fold the log into recipes, claims and routes; anyone can replay it. Start with `meshnet demo`, or
with `meshnet up` and the steps that it prints.

Every command and group takes `--help` and shows an example there. Exit codes: 0 ok, 1 failed,
2 usage, 3 verification failed, 4 unreachable, 5 not found, or not just one that goes by that name,
130 Ctrl-C (another signal likewise), 141 nobody reads the output any more.
"""

_COMMANDS = (
    ("demo", "meshnet_cli.demo.command:demo", "Everything, locally, end to end."),
    ("up", "meshnet_cli.commands.up:up", "Make a realm on this machine, or go on with it."),
    ("admin", "meshnet_cli.commands.admin:app", "Enrol, suspend, revoke, set policy: operators."),
    ("node", "meshnet_cli.commands.node:app", "Run a node: keys, pins, proofs, sessions."),
    (
        "generate",
        "meshnet_cli.commands.generate:generate",
        "Text for a user, over a certified route.",
    ),
    ("recipe", "meshnet_cli.commands.recipe:app", "What may be computed, and what may serve."),
    ("shard", "meshnet_cli.commands.shard:app", "Who holds which layers, and why not."),
    ("route", "meshnet_cli.commands.route:app", "Chains of shards over a whole model."),
    ("log", "meshnet_cli.commands.log:log", "Records with their outcome and reason."),
    ("audit", "meshnet_cli.commands.audit:app", "Replay the log and see what held, and when."),
    ("schema", "meshnet_cli.commands.schema:app", "The contract: schemas and pages."),
    ("bench", "meshnet_cli.bench.command:app", "How fast this is, beside its raw limit."),
)


def make_app(arguments: Sequence[str] = ()) -> App:
    """The command line's app.

    A line given with a lazy command would take the place of the command's own help, so the command
    that `arguments` call for is registered without one.
    """
    app = App(
        name="meshnet",
        help=_HELP,
        version=_version,
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
    )
    called = next(iter(arguments), None)
    for name, place, line in _COMMANDS:
        app.command(place, name=name, help=None if name == called else line)
    app.register_install_completion_command(
        help="Complete commands and options in this shell: bash, fish or zsh."
    )
    return app


def _version() -> str:
    from importlib.metadata import version

    return version("meshnet-registry")
