"""Draws demo.svg, the README's picture, from what `meshnet demo` really prints.

    .venv/bin/python docs/images/draw_demo.py

Keys differ from run to run, so the picture does too; it is drawn anew when the demo changes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

LAST_STEP = "7/11"


def main() -> None:
    """Run the demo, take it up to the step before the last shown, and draw."""
    told = subprocess.run(
        [sys.executable, "-m", "meshnet_cli", "demo"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FORCE_COLOR": "1", "COLORTERM": "truecolor", "COLUMNS": "112"},
    ).stdout
    shown = told.split(f"{LAST_STEP}", 1)[0].rstrip().rsplit("\n", 1)[0].rstrip()
    with Path(os.devnull).open("w") as nowhere:
        screen = Console(record=True, width=112, file=nowhere)
        screen.print(Text.from_ansi("$ meshnet demo\n" + shown))
    # no picture of ours asks another host for a font
    template = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    drawn = screen.export_svg(title="meshnet demo", code_format=template)
    Path(__file__).with_name("demo.svg").write_text(drawn)


if __name__ == "__main__":
    main()
