"""Sweeps against the real service: declared, charged, and their trials counted."""

from types import SimpleNamespace
from typing import cast

import pytest

from epsilon_ledger import (
    EventCount,
    LedgerClient,
    Run,
    RunState,
    RunStateConflictError,
    Trial,
    TrialExceededError,
    gaussian,
    poisson_sampled,
    trials,
)
from tests.sdk.fake_ledger import open_budget

STEP = poisson_sampled(0.01, gaussian(4.0))
SCORE = gaussian(40.0)
EACH: list[EventCount] = [{"event": STEP, "count": 3}, {"event": SCORE, "count": 1}]


def test_sweep_is_charged_at_once_and_its_trials_send_nothing(admin: LedgerClient) -> None:
    budget = open_budget(admin, 2.0)
    made = admin.create_experiment("rates", budget=budget, events=EACH, mean=4.0, shape=0.0)
    assert made.trials is not None
    assert made.run is not None
    with pytest.raises(RunStateConflictError, match="charged before"):
        admin.charge_experiment(made.id)
    spent = admin.get_budget(made.budget).epsilon
    assert spent > 0
    with admin.get_run(made.run) as sweep:
        found = list(trials(sweep, made.trials, EACH))
        assert [trial.number for trial in found] == list(range(made.trials))
        for trial in found:
            trial.authorize(3, event=STEP)
            trial.authorize(event=SCORE)
    assert admin.get_budget(made.budget).epsilon == spent
    assert admin.get_run(made.run).status == "completed"
    with pytest.raises(ValueError, match="both `events` and `mean`"):
        admin.create_experiment("rates", budget=budget, events=EACH)
    waiting = SimpleNamespace(id="run_1", state=object(), next_step=0, refresh=lambda: None)  # approved, not charged
    with pytest.raises(TrialExceededError, match="charge_experiment"):
        next(trials(cast("Run", waiting), 3, EACH))
    read = admin.get_experiment(made.id)
    assert (read.trials, read.status, read.epsilon) == (None, "completed", made.epsilon)


def _trial(*each: EventCount) -> Trial:
    return Trial(cast("RunState", SimpleNamespace(id="run_1", epsilon=1.5)), 7, list(each))


def test_trial_does_no_more_than_was_declared() -> None:
    trial = _trial({"event": STEP, "count": 2}, {"event": SCORE, "count": 1}, {"event": STEP, "count": 1})
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


def test_trial_goes_through_its_batches_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = _trial({"event": STEP, "count": 2})
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="count the same steps once more"):
        trial.authorize(event=STEP)
    monkeypatch.undo()
    batches = trial.track("abc")
    assert [next(batches), next(batches)] == ["a", "b"]
    with pytest.raises(TrialExceededError):
        next(batches)
