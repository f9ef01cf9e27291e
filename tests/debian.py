"""Debian's packages, installed where this process may."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tests.programs import run


def install(*packages: str) -> str:
    """Install packages, of two processes one after the other; return why that failed, or an empty text."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "only root can install packages here, and only by apt-get"
    with (Path(tempfile.gettempdir()) / "tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            done = run(["apt-get", "--quiet", *words], status=None, timeout=600, env=quiet)
            if done.returncode:
                return f"apt-get {words[0]} failed: {done.stderr.strip()[-500:]}"
    return ""
