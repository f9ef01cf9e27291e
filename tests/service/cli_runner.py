"""Commands of the command line, run in this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from app.cli import main


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str


Run = Callable[..., Said]


def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str) -> Run:
    """Something that runs a command on a database; whatever the command raises but its exit fails the test."""
    monkeypatch.setenv("EPSILON_LEDGER_DATABASE_URL", url)

    def command(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["epsilon-ledger", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return Said(int(left.value.code or 0), said.out, said.err)

    return command
