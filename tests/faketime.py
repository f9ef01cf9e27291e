"""A process whose clock is wrong: by the library faketime, which only what counts on passes, or by our own hand."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.reliability.failing_server import FAULTS

NAME = "libfaketimeMT.so.1"


@cache
def library() -> Path | None:
    """Debian's library, installed now if this process may; None: it cannot be had."""
    for attempt in range(2):
        for folder in (Path("/usr/lib"), Path("/usr/local/lib")):
            for found in folder.glob(f"**/faketime/{NAME}"):
                return found
        if attempt == 0 and os.geteuid() == 0 and shutil.which("apt-get"):
            install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "faketime"]
            subprocess.run(install, capture_output=True, check=False)
    return None


def wrong_by(seconds: int, folder: Path) -> tuple[str, dict[str, str]]:
    """The module to run as a server whose clock is ahead by so many seconds, and its further environment."""
    preloaded = library()
    if preloaded is not None:
        wrong = {"LD_PRELOAD": str(preloaded), "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        # What mends timed waits of an old glibc lets those of today turn in circles, at ten times the processor time.
        return "app", wrong | {"FAKETIME_FORCE_MONOTONIC_FIX": "0"}
    errors = folder / "faults.json"
    errors.write_text(f'{{"clock": {seconds}}}')
    return "tests.reliability.failing_server", {FAULTS: str(errors)}
