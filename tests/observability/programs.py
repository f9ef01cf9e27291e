"""Programs of Prometheus: on this machine, or out of Debian's packages, without installing them."""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest


class NoProgramError(Exception):
    """A program is not on this machine, and cannot be had."""


@cache
def _find(package: str, name: str) -> Path:
    """Where a program is: on the PATH, fetched before, or fetched now with apt-get, which needs no root for it."""
    installed = shutil.which(name)
    if installed:
        return Path(installed)
    kept = Path(sys.prefix) / "tools" / name
    if kept.exists():
        return kept
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise NoProgramError(f"{name} is not on the PATH, and there is no apt-get to fetch it")
    with tempfile.TemporaryDirectory() as folder:
        fetched = subprocess.run(
            ["apt-get", "download", package], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        for file in Path(folder).glob(f"{package}_*.deb"):
            subprocess.run(["dpkg", "-x", file, folder], capture_output=True, timeout=120, check=True)
            kept.parent.mkdir(exist_ok=True)
            arrived = kept.with_name(f"{name}-{os.getpid()}")  # another test process may fetch it, too
            shutil.copy(Path(folder) / "usr" / "bin" / name, arrived)
            arrived.replace(kept)
            return kept
    raise NoProgramError(f"{name} is not on the PATH, and apt-get did not bring it: {fetched.stderr.strip()}")


def program(package: str, name: str) -> Path:
    """Where a program of a package is; where it cannot be had, the test is skipped, and in CI it fails."""
    try:
        return _find(package, name)
    except NoProgramError as error:
        if os.environ.get("CI"):
            pytest.fail(f"needs {name}: {error}", pytrace=False)
        pytest.skip(f"needs {name}: {error}")


def promtool(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Prometheus' own checker."""
    tool = program("prometheus", "promtool")
    return subprocess.run([tool, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False)
