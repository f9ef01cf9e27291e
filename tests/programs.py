"""Programs that a test runs to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any


def run(command: Sequence[str | Path], status: int | None = 0, **more: Any) -> CompletedProcess[str]:  # noqa: ANN401 - of subprocess.run
    """Run a program, which must end with this status; None: with any."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **{"timeout": 120} | more)
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done
