"""The monitor against a real server: it knows how long a training may last, and the training lasts so long."""

from typing import Any, get_args

import pytest

from epsilon_ledger import BudgetExceededError, LedgerClient, Run, decay, gaussian, poisson_sampled
from epsilon_ledger._wire.noise_decay import DecayMode
from epsilon_ledger.monitor import PrivacyMonitor
from tests.sdk.fake_ledger import open_budget
from tests.soak import thinned

DATA: dict[str, Any] = {"num_samples": 1000, "batch_size": 50}
"""Twenty steps an epoch."""
TARGET: dict[str, Any] = {"max_eps": 1.0, "target_delta": 1e-5}
STEP = poisson_sampled(0.05, gaussian(1.5))


def registered(admin: LedgerClient, epsilon: float = 3.0, **more: Any) -> Run:  # noqa: ANN401 - passed on
    return admin.create_run("model", budget=open_budget(admin, epsilon), **more)


@pytest.mark.parametrize("mode", thinned([None, *get_args(DecayMode)], 4))
def test_one_epoch_more_than_most_would_pass_target(admin: LedgerClient, mode: DecayMode | None) -> None:
    # Eight steps an epoch: with a decay, each is an event of its own that the service has to price.
    monitor = PrivacyMonitor(
        admin,
        num_samples=1000,
        batch_size=125,
        initial_noise_multiplier=2.5,
        max_eps=2.5,
        target_delta=1e-5,
        noise_decay_mode=mode,
        noise_decay_rate=0.01,
    )
    most = monitor.max_epochs()

    def epsilon(epochs: int) -> float:
        steps = [monitor.event(step) for step in range(8 * epochs)]
        return admin.compute_epsilon([{"event": step, "count": 1} for step in steps], delta=1e-5).epsilon

    assert most > 3
    assert epsilon(most) <= 2.5 < epsilon(most + 1)


@pytest.mark.parametrize("mode", [None, "exp"])
def test_training_lasts_as_many_epochs_as_it_said_and_not_one_more(admin: LedgerClient, mode: DecayMode | None) -> None:
    with registered(admin) as run:
        fewer: dict[str, Any] = {"num_samples": 1000, "batch_size": 250, "initial_noise_multiplier": 2.5}
        monitor = PrivacyMonitor(admin, run, **fewer, noise_decay_mode=mode, noise_decay_rate=0.01)
        epochs = monitor.max_epochs()
        assert epochs > 1
        released = [monitor.step_begin() for _ in range(4 * epochs)]
        with pytest.raises(BudgetExceededError):
            released.extend(monitor.step_begin() for _ in range(4))


def test_monitor_knows_spending_of_others(admin: LedgerClient) -> None:
    budget = open_budget(admin, 3.0)
    run = admin.create_run("model", budget=budget)
    monitor = PrivacyMonitor(admin, run, **DATA)
    before = monitor.max_epochs()
    admin.create_run("another", budget=budget, event=STEP).authorize(80)
    assert monitor.max_epochs() == before - 4
    admin.create_run("a third", budget=budget, event=STEP).authorize(10_000, truncate=True)
    assert monitor.max_epochs() == 0


def test_monitor_prints_epsilon_of_ledger_every_so_many_steps(admin: LedgerClient) -> None:
    lines: list[str] = []
    monitor = PrivacyMonitor(admin, registered(admin), **DATA, per_print_times=2, write=lines.append)
    steps = []
    for _ in range(5):
        steps.append(monitor.step_begin())
        monitor.step_end(run_context=None)
    assert lines == [
        f"step {step.next_step}, epoch {step.next_step / 20:.2f}: epsilon {step.epsilon:.4f} at delta 1e-05, "
        f"{100 * step.used:.1f} % used"
        for step in steps[1::2]
    ]


def test_noise_after_restart_decays_from_step_of_training(admin: LedgerClient) -> None:
    decays: dict[str, Any] = {"noise_decay_mode": "exp", "noise_decay_rate": 0.02}
    run = registered(admin, epsilon=8.0)
    monitor = PrivacyMonitor(admin, run, **DATA, **decays)
    for _ in range(7):
        monitor.step_begin()
    resumed = admin.resume_run(run.state_dict())
    again = PrivacyMonitor(admin, resumed, **DATA, **decays)
    again.step_begin()
    (point,) = admin.get_run_history(run.id).points[7:]
    assert [item["event"] for item in point.events] == [monitor.event(7)]
    with pytest.raises(ValueError, match="step that the training has reached"):
        PrivacyMonitor(admin, admin.get_run(run.id), **DATA, **decays)
    PrivacyMonitor(admin, admin.get_run(run.id), **DATA).step_begin()


def test_its_events_are_schedule_to_ask_ahead_by(admin: LedgerClient) -> None:
    monitor = PrivacyMonitor(admin, **DATA, **TARGET, noise_decay_mode="time", noise_decay_rate=0.02)
    with registered(admin, schedule=monitor.event, prefetch=10) as run:
        for _ in range(15):
            run.authorize()
    points = admin.get_run_history(run.id).points
    assert [(point.count, point.events_truncated) for point in points] == [(10, False), (5, False)]
    charged = [item for point in points for item in point.events]
    price = admin.compute_epsilon([{"event": decay("time", 0.02, STEP, steps=15), "count": 1}], delta=1e-5).epsilon
    assert admin.compute_epsilon(charged, delta=1e-5).epsilon == pytest.approx(price, rel=1e-8)


def test_zcdp_counts_every_step_as_one_on_all_records(admin: LedgerClient) -> None:
    monitor = PrivacyMonitor(admin, policy="zcdp", **DATA, max_eps=40.0, target_delta=1e-5)
    assert monitor.event(3) == gaussian(1.5)
    steps = 20 * monitor.max_epochs()
    assert steps > 0
    for count, fits in ((steps, True), (steps + 20, False)):
        read = admin.compute_epsilon([{"event": gaussian(1.5), "count": count}], delta=1e-5).epsilon
        assert (read <= 40.0) is fits


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"policy": "pld"}, "'rdp' or 'zcdp'"),
    ({"batch_size": 2000}, "at most num_samples"),
    ({"noise_decay_mode": "Exp"}, "'time', 'step', 'exp'"),
    ({"initial_noise_multiplier": 0.0}, "initial_noise_multiplier must be"),
    ({"max_eps": None}, "Give max_eps and target_delta together"),
    ({"max_eps": None, "target_delta": None}, "or a run, whose accounts"),
    ({"max_delta": 1e-4}, "or max_delta and target_eps"),
    ({"max_delta": 1e-4, "target_eps": 1.0}, "either target_delta or target_eps"),
    ({"max_eps": 0.0}, "max_eps must be in"),
    ({"orders": [2.0, 1.0]}, "orders must be in"),
    ({"per_print_times": 0}, "per_print_times must be at least 1"),
    ({"policy": "zcdp", "sampled": True}, "does not shrink with sampling"),
]


def test_wrong_arguments_are_named(admin: LedgerClient) -> None:
    for wrong, message in WRONG:
        with pytest.raises(ValueError, match=message):
            PrivacyMonitor(admin, **DATA | TARGET | wrong)
    with pytest.raises(ValueError, match="give it a run"):
        PrivacyMonitor(admin, **DATA, **TARGET).step_begin()
