"""Progress bars: where a terminal is there, or where they are wanted; never in the way."""

import io
import sys

import pytest

from epsilon_ledger import BudgetExceededError, Run
from tests.sdk.fake_ledger import FakeLedger


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def in_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The place of standard error from now on; pytest puts its own there before each test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    return made


def without(monkeypatch: pytest.MonkeyPatch, *libraries: str) -> None:
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)


def test_each_batch_is_handed_out_when_its_step_is_admitted(
    run: Run, ledger: FakeLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = [(batch, ledger.next_step) for batch in run.track("abc")]
    assert seen == [("a", 1), ("b", 2), ("c", 3)]
    assert capsys.readouterr().err == ""  # without a terminal
    ledger.capacity = 5
    with pytest.raises(BudgetExceededError):
        seen.extend((batch, ledger.next_step) for batch in run.track("defg"))
    assert seen[3:] == [("d", 4), ("e", 5)]


@pytest.mark.parametrize("missing", [(), ("rich.progress",)], ids=["rich", "tqdm"])
def test_bar_in_terminal_shows_steps_and_epsilon(
    run: Run, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    terminal = in_terminal(monkeypatch)
    without(monkeypatch, *missing)
    assert list(run.track([1, 2, 3, 4])) == [1, 2, 3, 4]
    said = terminal.getvalue()
    assert "icu" in said
    assert "epsilon 1 of 3" in said
    assert "4" in said


def test_bar_can_be_unwanted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    assert list(run.track([1], progress=False)) == [1]
    assert terminal.getvalue() == ""


def test_wanted_bar_without_library_is_refused_before_first_step(
    run: Run, ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = in_terminal(monkeypatch)
    without(monkeypatch, "rich.progress", "tqdm.auto")
    with pytest.raises(ImportError, match="rich or tqdm"):
        next(run.track([1], progress=True))
    assert not ledger.requests
    assert list(run.track([1])) == [1]
    assert terminal.getvalue() == ""
