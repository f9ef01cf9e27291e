"""A step whose outcome is unknown is asked for again, and nothing else is, until it is settled."""

from collections.abc import Callable

import httpx2
import pytest

from epsilon_ledger import (
    BudgetExceededError,
    EventCount,
    LedgerUnavailableError,
    ProblemError,
    RequestInDoubtError,
    Run,
    UnexpectedResponseError,
    gaussian,
)
from tests.sdk.fake_ledger import TRIES, FakeLedger, Fault, authorization, problem


def test_after_giving_up_the_same_call_asks_for_the_same_steps_under_the_same_key(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(after=httpx2.ReadTimeout("no answer"))] * TRIES)
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize(2)
    assert caught.value.in_doubt
    assert any("same arguments" in note for note in caught.value.__notes__)
    assert run.next_step == 0
    assert run.authorize(2).next_step == 2
    assert len(set(ledger.keys)) == 1
    assert (run.next_step, ledger.next_step) == (2, 2)
    assert run.authorize(2).next_step == 4
    assert len(set(ledger.keys)) == 2


def test_while_a_step_is_in_doubt_nothing_else_can_be_asked_for(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(after=httpx2.ReadTimeout("no answer"))] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    asked = len(ledger.requests)
    other: list[Callable[[], object]] = [
        lambda: run.authorize(2),
        run.preview,
        lambda: run.authorize(event=gaussian(9.0)),
        lambda: run.authorize(events=[EventCount(event=gaussian(9.0), count=1)]),
    ]
    for ask in other:
        with pytest.raises(RequestInDoubtError, match="Step 0") as caught:
            ask()
        assert caught.value.first_step == 0
    assert len(ledger.requests) == asked
    run.authorize()
    assert run.authorize(2).first_step == 1


def test_settle_finds_out_about_the_step_in_doubt_and_others_can_be_asked_for(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(after=httpx2.ReadTimeout("no answer"))] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    settled = run.settle()
    assert settled is not None
    assert (settled.first_step, settled.next_step) == (0, 1)
    assert len(set(ledger.keys)) == 1
    # Nobody released it, so it is no step of the training.
    assert (run.next_step, run.step) == (1, None)
    assert run.authorize(2, event=gaussian(9.0)).first_step == 1
    assert run.settle() is None


def test_settle_that_gets_no_answer_either_may_be_called_again(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(after=httpx2.ReadTimeout("no answer"))] * 2 * TRIES)
    for ask in (run.authorize, run.settle):
        with pytest.raises(LedgerUnavailableError):
            ask()
    with pytest.raises(RequestInDoubtError):
        run.authorize(2)
    assert run.settle() is not None
    assert ledger.next_step == 1


def test_settle_of_a_step_that_is_refused_charges_nothing(run: Run, ledger: FakeLedger) -> None:
    ledger.capacity = 2
    ledger.faults.extend([Fault(instead=httpx2.ReadTimeout("no answer"))] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize(3)
    assert run.settle() is None
    assert run.authorize(2).first_step == 0


def test_settle_believes_no_answer_that_is_none(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(after=httpx2.ReadTimeout("no answer"))] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    ledger.faults.append(Fault(instead=httpx2.Response(200, json=authorization(5, 1))))
    with pytest.raises(UnexpectedResponseError, match="release nothing"):
        run.settle()
    assert run.next_step == 0
    assert run.settle() is not None


def test_a_state_change_in_between_does_not_renumber_what_is_in_doubt(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(after=httpx2.ReadTimeout("no answer"))] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    run.pause()
    run.resume()
    assert run.next_step == 1
    assert run.authorize().first_step == 0
    assert ledger.next_step == 1


def test_what_never_reached_the_ledger_is_not_in_doubt(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(instead=httpx2.ConnectError("refused"))] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    assert run.authorize(2).next_step == 2


def test_an_interrupt_in_the_middle_leaves_the_step_in_doubt(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.append(Fault(after=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run.authorize()
    with pytest.raises(RequestInDoubtError):
        run.authorize(2)
    assert run.authorize().next_step == 1
    assert ledger.next_step == 1


@pytest.mark.parametrize(
    "fault",
    [problem(500, "internal_error"), httpx2.Response(200, text="<html>"), httpx2.Response(200, json={"a": 1})],
    ids=["500", "no JSON", "no authorization"],
)
def test_an_answer_that_cannot_be_understood_leaves_the_step_in_doubt(
    run: Run, ledger: FakeLedger, fault: httpx2.Response
) -> None:
    ledger.faults.append(Fault(after=fault))
    with pytest.raises((UnexpectedResponseError, ProblemError)):
        run.authorize()
    assert run.next_step == 0
    assert run.authorize().next_step == 1
    assert len(set(ledger.keys)) == 1


@pytest.mark.parametrize(
    "fault",
    [problem(401, "unauthenticated"), problem(409, "run_state_conflict", run_status="paused")],
    ids=str,
)
def test_a_no_to_the_second_try_leaves_the_first_in_doubt(run: Run, ledger: FakeLedger, fault: httpx2.Response) -> None:
    ledger.faults.extend([Fault(after=httpx2.ReadTimeout("no answer")), Fault(instead=fault)])
    with pytest.raises(ProblemError):
        run.authorize()
    with pytest.raises(RequestInDoubtError):
        run.authorize(2)
    assert run.authorize().next_step == 1
    assert len(set(ledger.keys)) == 1


def test_a_no_to_the_only_try_leaves_nothing_in_doubt(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.append(Fault(instead=problem(401, "unauthenticated")))
    with pytest.raises(ProblemError):
        run.authorize()
    assert run.authorize(2).next_step == 2


def test_a_refusal_whose_reply_was_lost_stays_a_refusal_and_the_next_call_is_a_new_question(
    run: Run, ledger: FakeLedger
) -> None:
    ledger.capacity = 2
    ledger.faults.append(Fault(after=httpx2.ReadTimeout("no answer")))
    with pytest.raises(BudgetExceededError):
        run.authorize(3)
    assert len(set(ledger.keys)) == 1
    ledger.capacity = 10
    assert run.authorize(3).next_step == 3
    assert len(set(ledger.keys)) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"decision": "refused"},
        {"dry_run": True},
        {"run": "run_other"},
        {"first_step": 5},
        {"first_step": 5, "next_step": 6},
        {"next_step": 7},
    ],
    ids=str,
)
def test_only_an_admission_of_what_was_asked_counts(run: Run, ledger: FakeLedger, changed: dict[str, object]) -> None:
    ledger.faults.append(Fault(instead=httpx2.Response(200, json=authorization(0, 1) | changed)))
    with pytest.raises(UnexpectedResponseError, match="release nothing"):
        run.authorize()
    assert run.next_step == 0
