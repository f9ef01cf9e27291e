"""Small file systems of the tests' own, which can be filled."""

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def may_mount() -> bool:
    """Whether this process may make a small file system."""
    if os.geteuid() != 0:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@contextmanager
def a_disk(under: Path, size: int) -> Iterator[Path]:
    """A folder on a file system of its own, with so many bytes; everybody may go there."""
    folder = Path(tempfile.mkdtemp(prefix="disk-", dir=under))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


@contextmanager
def without_room(folder: Path) -> Iterator[None]:
    """A file takes all the room there is."""
    heavy = folder / "ballast"
    try:
        with heavy.open("wb") as file:
            while not _takes_the_rest(file.fileno(), folder):
                pass
        yield
    finally:
        heavy.unlink(missing_ok=True)


def _takes_the_rest(file: int, folder: Path) -> bool:
    """Let a file grow by the room that there is; whether it was still there, since others write to the same disk."""
    room = os.statvfs(folder)
    if room.f_bavail > 0:
        try:
            os.posix_fallocate(file, os.fstat(file).st_size, room.f_bavail * room.f_bsize)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
    return True
