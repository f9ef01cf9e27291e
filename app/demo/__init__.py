"""`epsilon-ledger demo`: a real DP-SGD training that stops at its budget, from an empty database on."""

import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

_NEEDED = {"sklearn": "scikit-learn", "epsilon_ledger": "epsilon-ledger-client"}


class DemoError(Exception):
    """The demo cannot continue; the message gives the reason."""


def run_demo(*, keep: bool = True, as_json: bool = False, seed: int | None = None) -> int:
    """Train until the ledger refuses a step, verify the ledger, return the exit status.

    With `as_json` the story goes to standard error, the facts as JSON to standard output. A `seed` is for tests only,
    because predictable noise protects no one.
    """
    console = Console(stderr=as_json)
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        console.print(
            f"The demo needs {' and '.join(missing)}. In a checkout, `make demo` installs all that it needs; "
            "elsewhere: pip install 'epsilon-ledger[demo]'",
            soft_wrap=True,
            markup=False,
        )
        return 1
    # Imported here because they need the optional packages checked above.
    from app.demo.report import Screen  # noqa: PLC0415
    from app.demo.scenario import play  # noqa: PLC0415

    screen = Screen(console)
    folder = Path(tempfile.mkdtemp(prefix="epsilon-ledger-demo-"))
    try:
        facts = play(screen, folder, seed=seed, keep=keep)
    except DemoError as error:
        screen.say(f"The demo failed: {error}")
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder)
    if as_json:
        sys.stdout.write(json.dumps(asdict(facts)) + "\n")
    return 0
