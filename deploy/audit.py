"""Are weaknesses known of what is locked? `make audit` asks the Python Packaging Advisory Database, by pip-audit.

`--strict` lets it fail where a package could not be looked up. It reads a lock for this platform; of the lock of the
service, the packages for all platforms and Pythons are looked up, too.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deploy.sbom import LOCK, ROOT, locked_packages

LOCKS: Final = tuple(
    f"requirements{name}.lock"
    for name in (
        "",
        "-dev",
        "-docs",
        "-generator",
        "-mutations",
        "-torch",
        "-cuda",
        "-frameworks",
        "-flower",
    )
)
"""Not the lock of torch's CPU build: no database knows that build, and its version stands in the lock before it."""

PIP_AUDIT: Final = ("tool", "run", "--quiet", "pip-audit@2.10.1", "--strict", "--disable-pip", "--progress-spinner=off")


def requirements_of(lock: str) -> list[str]:
    """Turn a lock into requirements files that together name its packages, whatever the platform.

    Args:
        lock: its text.

    Returns:
        Texts; each names a package once at most, as pip-audit demands, and a lock may have it in several versions.
    """
    files: list[dict[str, str]] = []
    for package in locked_packages(lock):
        free = next((file for file in files if package.name not in file), None)
        if free is None:
            files.append(free := {})
        hashes = "".join(f" --hash=sha256:{each}" for each in package.hashes)
        free[package.name] = f"{package.name}=={package.version}{hashes}"
    return ["".join(f"{line}\n" for line in file.values()) for file in files]


def passes(name: str, file: Path) -> bool:
    """Look a requirements file up, and tell whether all of it was found, without a weakness."""
    sys.stdout.write(f"{name}: ")
    sys.stdout.flush()
    uv = Path(sys.executable).with_name("uv")
    return subprocess.run([uv, *PIP_AUDIT, f"--requirement={file}"], check=False).returncode == 0  # noqa: S603 - our own files


def main() -> None:
    """Look up everything; fail unless all was looked up and nothing found."""
    with TemporaryDirectory() as folder:
        asked = {lock: ROOT / lock for lock in LOCKS}
        for number, text in enumerate(requirements_of(LOCK.read_text()), 1):
            asked[f"service, all platforms, part {number}"] = file = Path(folder, f"{number}.txt")
            file.write_text(text)
        failed = [name for name, file in asked.items() if not passes(name, file)]
    sys.exit(f"The audit failed for {', '.join(failed)}. Without a network nothing can be looked up." if failed else 0)


if __name__ == "__main__":
    main()
