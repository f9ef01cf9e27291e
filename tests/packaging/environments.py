"""Virtual environments that have the built wheel, and chosen packages of this one."""

import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

import httpx2
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.dockerfile import ROOT
from tests.packaging.sbom import locked_packages


@dataclass(frozen=True)
class Installed:
    """The wheel, and a virtual environment that has it."""

    wheel: Path
    bin: Path

    def beside(self, folder: Path, packages: Iterable[Distribution]) -> "Installed":
        """The files of the wheel, as they were installed, in another environment beside other packages."""
        target = new_environment(folder, packages)
        (installed,) = self.bin.parent.glob("lib/python*/site-packages")
        for path in installed.iterdir():
            if path.suffix != ".pth":
                (folder / "shown" / path.name).symlink_to(path)
        return Installed(self.wheel, target / "bin")

    def run(self, *words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / words[0], *words[1:]],
            cwd=cwd,
            env=self.environment() | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EPSILON_LEDGER_", "PYTHON"))}
        return kept | {"PATH": f"{self.bin}{os.pathsep}{kept['PATH']}"}


def new_environment(folder: Path, packages: Iterable[Distribution]) -> Path:
    """Make a virtual environment without pip that sees these packages, and no others of this one; return it."""
    target, shown = folder / "epsilon-ledger", folder / "shown"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", target], check=True)
    shown.mkdir()
    for package in packages:
        for file in package.files or ():
            if file.parts[0] in {"..", "__pycache__"}:
                continue
            own = Path(str(package.locate_file(file.parts[0])))
            shared = own.is_dir() and own.suffix != ".dist-info" and not (own / "__init__.py").exists()
            place = file if shared else file.parts[0]  # a namespace belongs to several packages
            if not (shown / place).exists():
                (shown / place).parent.mkdir(parents=True, exist_ok=True)
                (shown / place).symlink_to(str(package.locate_file(place)))
    (site_packages,) = target.glob("lib/python*/site-packages")
    (site_packages / "shown.pth").write_text(f"{shown}\n")
    return target


def locked(lock: str) -> Iterator[Distribution]:
    """What a lock installs on this platform."""
    for package in locked_packages((ROOT / lock).read_text()):
        if not package.marker or Marker(package.marker).evaluate():
            yield distribution(package.name)


def needed() -> Iterator[Distribution]:
    """What the service needs without extras, and what that needs."""
    return closure(map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]))


def closure(requirements: Iterable[Requirement]) -> Iterator[Distribution]:
    """The installed packages that requirements lead to."""
    wanted, found = list(requirements), set[tuple[str, str]]()
    while wanted:
        requirement = wanted.pop()
        for extra in {"", *requirement.extras}:
            key = (canonicalize_name(requirement.name), extra)
            if key in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
                continue
            found.add(key)
            package = distribution(requirement.name)
            parts = [Requirement(text) for text in package.requires or ()]
            wanted += [each for each in parts if each.marker is None or each.marker.evaluate({"extra": extra})]
            if not extra:
                yield package


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a service takes steps."""
    until = time.monotonic() + 60
    with httpx2.Client(trust_env=False, timeout=5) as http:
        while True:
            try:
                if http.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
