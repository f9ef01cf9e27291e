"""Prometheus' own checker: on this machine, or out of Debian's package, without installing it."""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

NO_PROMTOOL = "needs promtool"


class NoPromtoolError(Exception):
    """There is no promtool on this machine, and none can be had."""


@cache
def _find() -> Path:
    """Where promtool is: on the PATH, fetched before, or fetched now with apt-get, which needs no root for it."""
    installed = shutil.which("promtool")
    if installed:
        return Path(installed)
    kept = Path(sys.prefix) / "tools" / "promtool"
    if kept.exists():
        return kept
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise NoPromtoolError("promtool is not on the PATH, and there is no apt-get to fetch it")
    with tempfile.TemporaryDirectory() as folder:
        fetched = subprocess.run(
            ["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        for package in Path(folder).glob("prometheus_*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], capture_output=True, timeout=120, check=True)
            kept.parent.mkdir(exist_ok=True)
            arrived = kept.with_name(f"promtool-{os.getpid()}")  # another test process may fetch it, too
            shutil.copy(Path(folder) / "usr" / "bin" / "promtool", arrived)
            arrived.replace(kept)
            return kept
    raise NoPromtoolError(f"promtool is not on the PATH, and apt-get did not bring it: {fetched.stderr.strip()}")


def promtool(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool; where it cannot be had, the test is skipped, and in CI it fails."""
    try:
        tool = _find()
    except NoPromtoolError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{NO_PROMTOOL}: {error}", pytrace=False)
        pytest.skip(f"{NO_PROMTOOL}: {error}")
    return subprocess.run([tool, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False)
