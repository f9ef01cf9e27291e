"""A Docker Engine of its own, in namespaces that end with it."""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = (
    "buildah",
    "debootstrap",
    "dnsmasq-base",
    "docker-compose",
    "docker.io",
    "iproute2",
    "kubernetes-client",
    "nftables",
)
"""Debian's, which the trial needs; `kubectl` may come from elsewhere."""

PROGRAMS: Final = ("buildah", "debootstrap", "dnsmasq", "docker", "docker-compose", "dockerd", "ip", "kubectl", "nft")
PATIENCE_SECONDS: Final = 60.0
_CGROUPS: Final = Path("/sys/fs/cgroup")
_CGROUP: Final = "epsilon-ledger-trial"


class EngineMissingError(Exception):
    """No engine can be started here."""


def require_programs() -> None:
    """Check that the programs are installed, and that this is root.

    Raises:
        EngineMissingError: names what is missing.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        install = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
        raise EngineMissingError(f"{', '.join(missing)} not found; as root: {install}")
    if os.geteuid() != 0:
        raise EngineMissingError("it needs root, for namespaces and an engine of its own")


def run_in_namespaces(arguments: Sequence[str]) -> int:
    """Run the trial with mounts, a network and processes of its own, which end with it; return its exit code."""
    own = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
    return subprocess.run(
        ["unshare", *own, sys.executable, "-m", "tests.deploy.engine", *arguments], check=False
    ).returncode


def process_status(process: int) -> dict[str, str]:
    """Read what the kernel says of a process: `/proc/PID/status`, by key."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


class Engine:
    """A running Docker Engine.

    Args:
        folder: of its data and its log.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"DOCKER_HOST": f"unix://{folder / 'docker.sock'}"}

    def run(self, *arguments: str, timeout: float = 600, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a `docker` command.

        Raises:
            RuntimeError: it failed, and `check` is set.
        """
        command = ["docker", *arguments]
        return run(command, environment=self.environment, timeout=timeout, check=check)

    def inspect(self, name: str) -> dict[str, Any]:
        """Get what the engine knows of a container."""
        [found] = json.loads(self.run("inspect", name).stdout)
        known: dict[str, Any] = found
        return known

    def load(self, archive: Path, name: str) -> None:
        """Load an image from an archive of buildah, under a name of its own."""
        loaded = self.run("load", "--quiet", "--input", str(archive)).stdout.split(": ", 1)[1].strip()
        self.run("tag", loaded, name)

    def remove_containers(self) -> None:
        """Remove every container."""
        if found := self.run("ps", "--all", "--quiet").stdout.split():
            self.run("rm", "--force", "--volumes", *found)


def run(
    command: Sequence[str],
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 600,
    check: bool = True,
) -> "subprocess.CompletedProcess[str]":
    """Run a command; return what it printed.

    Raises:
        RuntimeError: it failed, with what it printed, and `check` is set.
    """
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """Run a Docker Engine for the block.

    Raises:
        EngineMissingError: it does not start.
    """
    _leave_hybrid_cgroups()
    run(["ip", "link", "set", "lo", "up"])
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    options = {
        "--data-root": folder / "data",
        "--exec-root": folder / "exec",
        "--pidfile": folder / "pid",
        "--host": f"unix://{folder / 'docker.sock'}",
        "--cgroup-parent": _CGROUP,
        # The engine's own default is more than some machines let root have.
        "--default-ulimit": f"nofile={files}:{files}",
    }
    words = [str(word) for option in options.items() for word in option]
    with (folder / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(["dockerd", *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    started = Engine(folder)
    try:
        _await_answer(started, daemon)
        started.remove_containers()
        yield started
        started.remove_containers()
    finally:
        daemon.terminate()
        daemon.wait(30)
        for left in _CGROUPS.glob(f"*/{_CGROUP}"):
            left.rmdir()


def _await_answer(started: Engine, daemon: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while started.run("version", check=False).returncode != 0:
        if daemon.poll() is not None or time.monotonic() > until:
            said = (started.folder / "dockerd.log").read_text().splitlines()[-5:]
            raise EngineMissingError("dockerd does not start: " + "\n".join(said))
        time.sleep(0.2)


def _leave_hybrid_cgroups() -> None:
    """Unmount cgroup version 2 in this namespace where version 1 has controllers: runtimes refuse the mixture."""
    kinds = {words[1]: words[2] for words in map(str.split, Path("/proc/mounts").read_text().splitlines())}
    under = [Path(path) for path, kind in kinds.items() if kind == "cgroup2" and Path(path) != _CGROUPS]
    if "cgroup" in kinds.values():
        for path in under:
            run(["umount", str(path)])
