"""A real browser: Debian's Chromium, driven by Playwright; installed where it can be, and never missed in silence.

Preferred is the build without windows: a page takes a sixth of the processor time that it takes of the other.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
"""The sandbox needs rights that root in a container has not; the others keep the browser from asking its maker."""


PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class NoBrowserError(Exception):
    """There is no browser, and none can be had; the message says why."""


@cache
def chromium() -> str:
    """The browser's program; installed from Debian's packages if this machine lets us.

    Raises:
        NoBrowserError: there is none, and none can be had.
    """
    with (Path(tempfile.gettempdir()) / f"chromium-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two workers one installs it, and the other one waits
        found = _found()
        if found is None:
            _install()
            found = _found()
    if found is None:
        raise NoBrowserError(f"Debian's package {PROGRAMS[0]} was installed, and yet there is no such program.")
    return found


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser, for a while.

    Raises:
        NoBrowserError: there is none, and none can be had.
    """
    program = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def _found() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


def _install() -> None:
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise NoBrowserError(f"Install Chromium (Debian: apt-get install {PROGRAMS[0]}); only root can do it here.")
    quietly = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", PROGRAMS[0], "fonts-dejavu-core"],
    ):
        done = subprocess.run(
            ["apt-get", *words], capture_output=True, text=True, check=False, timeout=600, env=quietly
        )
        if done.returncode:
            raise NoBrowserError(f"apt-get {words[0]} failed: {done.stderr.strip()[-500:]}")
