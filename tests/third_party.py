"""The package of a third party (`third_party_backend/`), installed as pip would, into a folder.

Built without pip, so that no network and no build tool is asked for: what discovery reads is the
metadata beside the code, and that is made from the package's own pyproject.toml.
"""

import shutil
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parent / "third_party_backend"


def install(folder: Path) -> Path:
    """Install the package into `folder`, to be put on the path; returns `folder`."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    module = name.replace("-", "_")
    shutil.copytree(PACKAGE / module, folder / module, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = folder / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    return folder
