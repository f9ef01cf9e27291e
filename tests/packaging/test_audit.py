"""The audit passes only if pip-audit passed for every lock, and for the service's packages on every platform."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy import audit
from deploy.sbom import LOCK, ROOT, locked_packages


def test_every_lock_is_audited_and_every_package_of_the_service_on_any_platform() -> None:
    assert {path.name for path in ROOT.glob("requirements*.lock")} == {*audit.LOCKS, "requirements-torch-cpu.lock"}
    parts = [text.splitlines() for text in audit.requirements_of(LOCK.read_text())]
    pins = [line.split()[0] for lines in parts for line in lines]
    assert sorted(pins) == sorted(f"{each.name}=={each.version}" for each in locked_packages(LOCK.read_text()))
    for lines in parts:
        assert len({line.split("==")[0] for line in lines}) == len(lines)
        assert all("--hash=sha256:" in line for line in lines)


@pytest.mark.parametrize("failing", [None, *audit.LOCKS[:2], "1.txt"])
def test_audit_fails_where_pip_audit_fails_for_one_file(monkeypatch: pytest.MonkeyPatch, failing: str | None) -> None:
    asked: list[str] = []

    def run(command: list[str | Path], *, check: bool) -> "subprocess.CompletedProcess[bytes]":
        assert command[0] == Path(sys.executable).with_name("uv")
        assert not check
        assert "--strict" in command
        asked.append(Path(str(command[-1])).name)
        return subprocess.CompletedProcess(command, int(asked[-1] == failing))

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit) as end:
        audit.main()
    assert bool(end.value.code) is (failing is not None)
    assert asked[: len(audit.LOCKS)] == list(audit.LOCKS)
    assert asked[len(audit.LOCKS) :]
