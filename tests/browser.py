"""A real browser: Debian's Chromium, driven by Playwright; installed where it can be, and never missed in silence."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from playwright.sync_api import Browser, sync_playwright

from tests.debian import install

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
"""The sandbox needs rights that root in a container has not; the others keep the browser from asking its maker."""

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Preferred is the build without windows: a page takes a sixth of the processor time that it takes of the other."""


class NoBrowserError(Exception):
    """There is no browser, and none can be had; the message says why."""


@cache
def chromium() -> str:
    """The browser's program; installed from Debian's packages if this machine lets us.

    Raises:
        NoBrowserError: there is none, and none can be had.
    """
    failure = "" if any(map(shutil.which, PROGRAMS)) else install(PROGRAMS[0], "fonts-dejavu-core")
    for found in filter(None, map(shutil.which, PROGRAMS)):
        return found
    raise NoBrowserError(f"Install Chromium (Debian: apt-get install {PROGRAMS[0]}). {failure}")


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser, for a while.

    Raises:
        NoBrowserError: there is none, and none can be had.
    """
    program = chromium()
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program, args=FLAGS) as browser:
        yield browser
