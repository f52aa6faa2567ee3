"""`meshnet schema`: the contract, for whoever writes a node or an auditor in another language."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from meshnet_cli.output import note
from meshnet_events.schema import documents

app = App(name="schema", help="Export JSON Schema and AsyncAPI of every event.")


@app.command
def export(
    *,
    dir: Annotated[  # noqa: A002 - the option's name
        Path | None, Parameter(help="Write one file a document here. Default: all to stdout.")
    ] = None,
) -> None:
    """Export the contract: a JSON Schema of each event type, of a message, and AsyncAPI 3.

    The same release always gives the same bytes. Without a directory it is one JSON object, from a
    document's file name to the document.

    ```
    meshnet schema export --dir schemas
    meshnet schema export | jq 'keys'
    ```
    """
    found = documents()
    if dir is None:
        whole = {name: msgspec.Raw(content) for name, content in found.items()}
        sys.stdout.write(f"{msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()}\n")
        return
    dir.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        (dir / name).write_bytes(content)
    note(f"{len(found)} documents in {dir}")
