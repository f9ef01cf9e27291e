"""Programs of Prometheus: on this machine, or out of Debian's packages, without installing them."""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def program(package: str, name: str) -> Path:
    """Where a program of a package is; where it cannot be had, the test is skipped, and in CI it fails."""
    kept, installed = Path(sys.prefix) / "tools" / name, shutil.which(name)
    if installed or kept.exists():
        return Path(installed or kept)
    with tempfile.TemporaryDirectory() as folder:
        script = f"apt-get download {package} && dpkg -x {package}_*.deb ."
        fetch = subprocess.run(
            ["sh", "-c", script], cwd=folder, capture_output=True, text=True, timeout=240, check=False
        )
        if fetch.returncode == 0:
            kept.parent.mkdir(exist_ok=True)
            arrived = kept.with_name(f"{name}-{os.getpid()}")  # another test process may fetch it, too
            shutil.copy(Path(folder) / "usr" / "bin" / name, arrived)
            arrived.replace(kept)
            return kept
    reason = f"needs {name}, which is not on the PATH, and apt-get did not bring it: {fetch.stderr.strip()}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def promtool(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Prometheus' own checker."""
    tool = program("prometheus", "promtool")
    return subprocess.run([tool, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False)
