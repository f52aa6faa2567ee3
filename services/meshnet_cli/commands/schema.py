"""`meshnet schema`: the contract, for whoever writes a node or an auditor in another language."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from meshnet_cli.output import note
from meshnet_events.schema import documents

app = App(
    name="schema",
    help="""Export JSON Schema, AsyncAPI and the reference pages.

```
meshnet schema export --dir schemas
```
""",
)


@app.command
def export(
    *,
    dir: Annotated[  # noqa: A002 - the option's name
        Path | None, Parameter(help="Write one file a document here. Default: all to stdout.")
    ] = None,
) -> None:
    """Export the contract: a JSON Schema of each event type, of a message, and AsyncAPI 3.

    The same release always gives the same bytes. Without a directory it is one JSON object, from a
    document's file name to the document. It is JSON either way, so there is no `-o`.

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
    _write(dir, found)


@app.command
def pages(
    *,
    dir: Annotated[Path, Parameter(help="Write one file a page here.")],  # noqa: A002 - as above
) -> None:
    """Write the contract's reference pages, in Markdown: events and reasons.

    A stranger can write a node or an auditor with these alone. The same release always gives the
    same bytes.

    ```
    meshnet schema pages --dir docs/reference
    ```
    """
    from meshnet_events.reference import pages as written

    _write(dir, {name: text.encode() for name, text in written().items()})


def _write(folder: Path, documents: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in documents.items():
        (folder / name).write_bytes(content)
    note(f"{len(documents)} documents in {folder}")
