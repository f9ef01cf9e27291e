"""An example as its reader runs it: a command, a ledger, a key."""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.conftest import LiveServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(
    server: LiveServer,
    name: str,
    folder: Path,
    *options: str,
    warnings: str = "error",
    role: str = "admin",
    **constants: str,
) -> str:
    """Run an example, and return what it wrote to its reader; its files are in `folder`.

    Constants of its module are given as expressions: smaller ones make it shorter.
    """
    script = [str(EXAMPLES / name)]
    if constants:
        smaller = "; ".join(f"it.{constant} = {value}" for constant, value in constants.items())
        script = ["-c", f"import {Path(name).stem} as it; {smaller}; it.main()"]
    done = subprocess.run(
        [sys.executable, "-W", warnings, *script, "--out", folder, *options],
        cwd=folder.parent,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]),
            "EPSILON_LEDGER_URL": server.url,
            "EPSILON_LEDGER_API_KEY": server.key(role),
            "MPLCONFIGDIR": _matplotlib_folder().name,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_picture(file: Path) -> bool:
    """Whether a file is a PNG picture in which something is drawn."""
    return file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 10_000


@cache
def _matplotlib_folder() -> tempfile.TemporaryDirectory[str]:
    """Where all examples find the list of fonts, which takes seconds to make."""
    return tempfile.TemporaryDirectory()
