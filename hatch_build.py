"""Build hook: put Chart.js into the package, from its own npm package.

npm checks the package by the hash in `web/package-lock.json`. The file is checked again by the hash in
`web/package.json`, also where it is there already: in an sdist, or in a checkout that was set up.
"""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCRIPT = "chart.umd.min.js"
LICENSE = "LICENSE.md"


class ChartLibrary(BuildHookInterface[Any]):
    """Hook of wheels, editable ones too, and of sdists."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Provide Chart.js before files are collected."""
        del version, build_data
        provide(Path(self.root))


def provide(root: Path) -> None:
    """Fetch Chart.js into a checkout or an unpacked sdist, unless it is there.

    Raises:
        SystemExit: npm is missing or failed, or the file is not the one that was pinned.
    """
    folder = root / "app" / "dashboard" / "chart_js"
    pinned = json.loads((root / "web" / "package.json").read_text())["config"][SCRIPT]
    if not ((folder / LICENSE).exists() and _digest(folder / SCRIPT) == pinned):
        _fetch(root / "web", folder)
    if (found := _digest(folder / SCRIPT)) != pinned:
        (folder / SCRIPT).unlink(missing_ok=True)
        raise SystemExit(f"{SCRIPT} has the hash {found}, and web/package.json pins {pinned}; it was removed.")


def _fetch(web: Path, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit(
            "Chart.js comes from its npm package, and there is no npm here. Install npm (apt-get install npm), or "
            "build from an sdist, which has the file."
        )
    done = subprocess.run(  # noqa: S603 - npm as it was found
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"],
        cwd=web,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"`npm ci` in {web} failed:\n{done.stdout}{done.stderr}")
    package = web / "node_modules" / "chart.js"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(package / "dist" / SCRIPT, folder / SCRIPT)
    shutil.copyfile(package / LICENSE, folder / LICENSE)


def _digest(file: Path) -> str:
    """Return the SHA-256 of a file as web/package.json writes it; "none" if there is no file."""
    return f"sha256-{hashlib.sha256(file.read_bytes()).hexdigest()}" if file.exists() else "none"
