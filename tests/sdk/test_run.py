"""A run: its numbers, its states, and the end of its `with` block."""

import httpx2
import numpy as np
import pytest

from epsilon_ledger import (
    BudgetExceededError,
    LedgerClient,
    LedgerError,
    LedgerUnavailableError,
    Run,
    RunStateConflictError,
    StepsAlreadyTakenError,
    gaussian,
    poisson_sampled,
)
from tests.sdk.fake_ledger import RUN_ID, TRIES, FakeLedger, Fault, problem


def test_each_admission_moves_the_run_on(run: Run) -> None:
    assert (run.id, run.name, run.status, run.next_step, run.epsilon) == (RUN_ID, "icu", "active", 0, 0.0)
    answer = run.authorize(4)
    assert (answer.decision, answer.first_step, answer.count, answer.steps_remaining) == ("admitted", 0, 4, 6)
    assert (run.next_step, run.epsilon, run.state.steps_remaining) == (4, 1.0, 6)
    assert repr(run) == "<Run run_1 'icu' active next_step=4>"


def test_events_are_sent_as_they_were_given(run: Run, ledger: FakeLedger) -> None:
    event = poisson_sampled(0.01, gaussian(1.1))
    run.authorize(2, event=event)
    run.authorize(events=[{"event": event, "count": 3}, {"event": {"type": "laplace"}, "count": 1}])
    wire = {
        "type": "poisson_sampled",
        "sampling_probability": 0.01,
        "event": {"type": "gaussian", "noise_multiplier": 1.1},
    }
    assert ledger.bodies == [
        {"first_step": 0, "attempt": 1, "count": 2, "event": wire},
        {
            "first_step": 2,
            "attempt": 1,
            "events": [{"event": wire, "count": 3}, {"event": {"type": "laplace"}, "count": 1}],
        },
    ]
    assert run.next_step == 6


def test_numbers_of_numpy_are_accepted(run: Run, ledger: FakeLedger) -> None:
    run.authorize(int(np.int64(2)), event=gaussian(float(np.float32(1.5))))
    run.authorize(np.int64(1), event=gaussian(np.float32(1.5)))  # type: ignore[arg-type]
    assert [body["count"] for body in ledger.bodies] == [2, 1]


def test_contradicting_arguments_are_refused_before_anything_is_sent(run: Run, ledger: FakeLedger) -> None:
    items = [{"event": gaussian(1.0), "count": 1}]
    with pytest.raises(ValueError, match="either events"):
        run.authorize(2, events=items)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="either events"):
        run.preview(event=gaussian(1.0), events=items)  # type: ignore[arg-type]
    for count in (1.5, "3", True):
        with pytest.raises(TypeError, match="count must be a whole number"):
            run.authorize(count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        run.authorize(0)
    with pytest.raises(ValueError, match="JSON compliant"):
        run.authorize(event={"type": "gaussian", "noise_multiplier": float("nan")})
    assert not ledger.requests
    assert run.authorize().next_step == 1


def test_a_preview_charges_nothing(run: Run, ledger: FakeLedger) -> None:
    answer = run.preview(10)
    assert answer.dry_run
    assert (run.next_step, ledger.next_step) == (0, 0)
    with pytest.raises(BudgetExceededError) as caught:
        run.preview(11)
    assert caught.value.dry_run
    assert ledger.requests[0].url.query == b"dry_run=true"


def test_states(run: Run, ledger: FakeLedger) -> None:
    run.pause()
    assert run.status == "paused"
    run.resume()
    assert run.status == "active"
    run.abort()
    assert run.status == "aborted"
    with pytest.raises(RunStateConflictError) as caught:
        run.complete()
    assert caught.value.run_status == "aborted"
    assert [request.url.path for request in ledger.requests] == [
        f"/v1/runs/{RUN_ID}/{action}" for action in ("pause", "resume", "abort", "complete")
    ]
    assert ledger.bodies == [{}, {}, {"attempt": 1}, {"attempt": 1}]


def test_a_clean_exit_completes(client: LedgerClient, ledger: FakeLedger) -> None:
    with client.create_run("icu", budget="mimic/icu-team") as run:
        run.authorize()
    assert ledger.status == "completed"


def test_a_refusal_is_a_normal_end_and_is_passed_on(client: LedgerClient, ledger: FakeLedger) -> None:
    with pytest.raises(BudgetExceededError), client.create_run("icu", budget="mimic/icu-team") as run:
        run.authorize(11)
    assert ledger.status == "completed"


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_any_other_exception_aborts(client: LedgerClient, ledger: FakeLedger, error: BaseException) -> None:
    with pytest.raises(type(error)), client.create_run("icu", budget="mimic/icu-team"):
        raise error
    assert ledger.status == "aborted"


@pytest.mark.parametrize(
    "error", [StepsAlreadyTakenError("taken"), LedgerUnavailableError("gone")], ids=lambda error: type(error).__name__
)
def test_a_run_in_other_hands_or_out_of_reach_is_left_alone(
    client: LedgerClient, ledger: FakeLedger, error: LedgerError
) -> None:
    with pytest.raises(type(error)), client.create_run("icu", budget="mimic/icu-team"):
        raise error
    assert ledger.status == "active"
    assert len(ledger.requests) == 1


def test_a_paused_run_is_not_aborted_by_its_trainer(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(), Fault(instead=problem(409, "run_state_conflict", run_status="paused"))])
    with pytest.raises(RunStateConflictError), client.create_run("icu", budget="mimic/icu-team") as run:
        run.authorize()
    assert len(ledger.requests) == 2


def test_a_run_that_has_ended_is_not_ended_again(client: LedgerClient, ledger: FakeLedger) -> None:
    with client.create_run("icu", budget="mimic/icu-team") as run:
        run.complete()
    with pytest.raises(RuntimeError), run:
        raise RuntimeError
    assert [request.url.path.rsplit("/", 1)[-1] for request in ledger.requests] == ["runs", "complete"]


def test_the_first_exception_is_the_one_that_is_seen(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(), *[Fault(instead=httpx2.ConnectError("refused"))] * TRIES])
    with pytest.raises(ValueError, match="mine") as caught, client.create_run("icu", budget="mimic/icu-team"):
        raise ValueError("mine")
    assert any("did not confirm the request to abort the run run_1" in note for note in caught.value.__notes__)


def test_a_completion_that_fails_is_said(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(), *[Fault(instead=httpx2.ConnectError("refused"))] * TRIES])
    with pytest.raises(LedgerUnavailableError), client.create_run("icu", budget="mimic/icu-team"):
        pass
