"""Progress bars: where a terminal is there, or where they are wanted; never in the way."""

import io
import sys

import pytest

from epsilon_ledger import BudgetExceededError, Run
from tests.sdk.fake_ledger import FakeLedger


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The place of standard error."""
    made = io.StringIO()
    made.isatty = lambda: True  # type: ignore[method-assign]
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
    run: Run, terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    without(monkeypatch, *missing)
    monkeypatch.setattr(sys, "stderr", terminal)  # pytest puts its own there after fixtures
    assert list(run.track([1, 2, 3, 4])) == [1, 2, 3, 4]
    said = terminal.getvalue()
    assert all(part in said for part in ("icu", "epsilon 1, 40.0 % used", "4"))


def test_bar_that_is_unwanted_or_has_no_library_is_not_shown(
    run: Run, ledger: FakeLedger, terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(run.track([1], progress=False)) == [1]
    without(monkeypatch, "rich.progress", "tqdm.auto")
    ledger.requests.clear()
    with pytest.raises(ImportError, match="rich or tqdm"):
        next(run.track([1], progress=True))
    assert not ledger.requests
    assert list(run.track([1])) == [1]
    assert terminal.getvalue() == ""
