"""A real browser: Debian's Chromium, driven by Playwright; installed where it can be, and never missed in silence."""

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
        raise NoBrowserError("Debian's package chromium was installed, and yet there is no program chromium.")
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
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _install() -> None:
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise NoBrowserError("Install Chromium (Debian: apt-get install chromium); only root can do it here.")
    quietly = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
    ):
        done = subprocess.run(
            ["apt-get", *words], capture_output=True, text=True, check=False, timeout=600, env=quietly
        )
        if done.returncode:
            raise NoBrowserError(f"apt-get {words[0]} failed: {done.stderr.strip()[-500:]}")
