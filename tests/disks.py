"""Small file systems of the tests' own, which can be filled."""

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
    heavy, room = folder / "ballast", os.statvfs(folder)
    with heavy.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize)
    try:
        yield
    finally:
        heavy.unlink()
