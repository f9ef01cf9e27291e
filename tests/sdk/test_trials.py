"""Sweeps against a real server: declared, charged, and their trials counted."""

import copy
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from epsilon_ledger import (
    BudgetExceededError,
    Event,
    EventCount,
    LedgerClient,
    Limit,
    Run,
    RunState,
    RunStateConflictError,
    Trial,
    TrialExceededError,
    gaussian,
    poisson_sampled,
    trials,
)
from tests.conftest import LiveServer

STEP = poisson_sampled(0.01, gaussian(4.0))
SCORE = gaussian(40.0)
EACH: list[EventCount] = [{"event": STEP, "count": 3}, {"event": SCORE, "count": 1}]


@pytest.fixture
def client(live_server: LiveServer) -> Iterator[LedgerClient]:
    with LedgerClient(live_server.url, live_server.key("admin")) as client:
        yield client


@pytest.fixture
def budget(client: LedgerClient) -> str:
    people = client.create_population(
        f"people-{uuid.uuid4().hex[:8]}",
        privacy_unit="patient",
        neighboring_relation="add_or_remove_one",
        limit=Limit(3.0, 1e-5),
    )
    return client.create_budget("team", parent=people.path, limit=Limit(2.0, 1e-5)).path


def test_a_sweep_is_charged_at_once_and_its_trials_ask_nobody(client: LedgerClient, budget: str) -> None:
    made = client.create_experiment("rates", budget=budget, events=EACH, mean=4.0, shape=0.0)
    assert made.trials is not None
    assert made.run is not None
    spent = client.get_budget(made.budget).epsilon
    assert spent > 0
    with client.get_run(made.run) as sweep:
        found = list(trials(sweep, made.trials, EACH))
        assert [trial.number for trial in found] == list(range(made.trials))
        for trial in found:
            trial.authorize(3, event=STEP)
            trial.authorize(event=SCORE)
    assert client.get_budget(made.budget).epsilon == spent
    assert client.get_run(made.run).status == "completed"
    read = client.get_experiment(made.id)
    assert (read.trials, read.status, read.epsilon) == (None, "completed", made.epsilon)


def test_a_sweep_that_does_not_fit_is_refused(client: LedgerClient, budget: str) -> None:
    loud: list[EventCount] = [{"event": gaussian(0.5), "count": 10}]
    with pytest.raises(BudgetExceededError):
        client.create_experiment("rates", budget=budget, events=loud, mean=4.0)


def test_runs_that_are_charged_one_by_one_lie_under_their_experiment(client: LedgerClient, budget: str) -> None:
    made = client.create_experiment("widths", budget=budget, limit=Limit(1.0, 1e-5))
    with client.create_run("narrow", budget=made.path, event=STEP) as run:
        run.authorize(5)
    read = client.get_experiment(made.id)
    assert (read.runs, read.run, read.epsilon_limit) == (1, None, 1.0)
    assert read.epsilon > 0


def test_what_is_declared_at_once_has_both_a_trial_and_a_mean(client: LedgerClient, budget: str) -> None:
    with pytest.raises(ValueError, match="both `events` and `mean`"):
        client.create_experiment("rates", budget=budget, events=EACH)


class Waiting:
    """A run that was approved, and not charged yet."""

    id = "run_1"
    state = cast("RunState", object())
    next_step = 0

    def refresh(self) -> None:
        """Nothing has changed."""


def test_no_trial_of_a_sweep_begins_before_it_is_charged() -> None:
    with pytest.raises(TrialExceededError, match="charge_experiment"):
        next(trials(cast("Run", Waiting()), 3, EACH))


def test_a_sweep_that_was_charged_is_not_charged_again(client: LedgerClient, budget: str) -> None:
    made = client.create_experiment("rates", budget=budget, events=EACH, mean=4.0)
    with pytest.raises(RunStateConflictError, match="charged before"):
        client.charge_experiment(made.id)


def _trial(each: list[EventCount]) -> Trial:
    return Trial(cast("RunState", type("State", (), {"id": "run_1", "epsilon": 1.5})), 7, each)


def test_a_trial_does_no_more_than_was_declared() -> None:
    trial = _trial(EACH)
    trial.authorize(2, event=STEP)
    with pytest.raises(TrialExceededError, match="1 of those that were declared are left") as caught:
        trial.authorize(2, event=STEP)
    assert caught.value.run == "run_1"
    trial.authorize(event=STEP)
    with pytest.raises(TrialExceededError, match="nothing of the kind"):
        trial.authorize(event=gaussian(39.0))
    with pytest.raises(TrialExceededError, match="give the `event`"):
        trial.authorize()
    trial.authorize(event=SCORE)
    assert trial.next_step == 4
    assert repr(trial) == "<Trial run_1/7 next_step=4>"


def test_a_trial_of_one_event_goes_through_its_batches() -> None:
    trial = _trial([{"event": STEP, "count": 2}])
    batches = trial.track("abc")
    assert [next(batches), next(batches)] == ["a", "b"]
    with pytest.raises(TrialExceededError):
        next(batches)


class _Slow(list[tuple[Event, int]]):
    """A list whose reader is overtaken by other threads."""

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 - as the list's
        time.sleep(0.0005)
        return super().__getitem__(place)


def test_threads_that_share_a_trial_take_no_more_steps_than_were_declared() -> None:
    trial = _trial([{"event": STEP, "count": 21}])
    trial._remaining = _Slow(trial._remaining)
    taken: list[int] = []

    def take() -> None:
        with suppress(TrialExceededError):
            while True:
                trial.authorize(event=STEP)
                taken.append(1)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), trial.next_step) == (21, 21)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda how: how.__name__)
def test_a_trial_cannot_be_copied(copied: Callable[[Trial], object]) -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copied(_trial(EACH))


def test_a_trial_takes_no_steps_in_a_process_that_was_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = _trial(EACH)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="count the same steps once more"):
        trial.authorize(event=STEP)
    monkeypatch.undo()
    assert trial.next_step == 0


def test_an_event_that_was_declared_twice_is_counted_together() -> None:
    trial = _trial([{"event": STEP, "count": 2}, {"event": SCORE, "count": 1}, {"event": STEP, "count": 1}])
    trial.authorize(3, event=STEP)
    with pytest.raises(TrialExceededError, match="0 of those"):
        trial.authorize(event=STEP)
