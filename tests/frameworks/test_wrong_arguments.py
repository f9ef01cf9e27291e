"""Wrong arguments of the adapters: each says what is wrong and what would be right, before anything is charged."""

# ruff: noqa: ANN401 - values of any type are what is tried

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import optax
import pytest
import torch
from opacus import PrivacyEngine
from torch.optim import SGD

from epsilon_ledger import AsyncRun, LedgerClient, Run, gaussian, lightning, mlflow, nvflare, opacus, wandb
from epsilon_ledger import jax as jax_adapter
from epsilon_ledger import keras as keras_adapter
from epsilon_ledger import mindarmour as armour
from epsilon_ledger.dp_accounting import UntranslatableEventError, to_dp_accounting
from epsilon_ledger.monitor import PrivacyMonitor
from tests.frameworks import jax_trainings
from tests.frameworks.conftest import HOOKS_WARN, Training, make_private, small_loader
from tests.sdk.fake_runs import FakeRun

pytestmark = HOOKS_WARN

STEP = gaussian(2.0)
ASYNC: Any = AsyncRun.__new__(AsyncRun)
PLAN: dict[str, Any] = {"num_samples": 100, "batch_size": 10, "max_eps": 1.0, "target_delta": 1e-5}


class Network:
    """A network of arrays."""

    def gradients(self, data: Any, label: Any) -> list[Any]:  # noqa: ARG002 - what a network is given
        return [np.zeros(2)]


def dense() -> Any:
    return keras.Sequential([keras.layers.Dense(1)])


def step(x: Any) -> Any:
    return x


def armoured(run: Any = None, **changed: Any) -> Any:
    given: dict[str, Any] = {
        "micro_batches": 8,
        "noise_mech": armour.NoiseMechanismsFactory.create("Gaussian"),
        "optimizer": armour.SGD([np.zeros(2)], 0.1),
        "network": Network(),
        "batch_size": 8,
    }
    return armour.DPModel(**given | {"run": run} | changed)


ADAPTERS: dict[str, Callable[[Any, Training], object]] = {
    "opacus": lambda run, training: opacus.attach(training.optimizer, run, data_loader=training.loader),
    "opacus engine": lambda run, _: opacus.attach(_engine(), run),
    "opacus accountant": lambda run, _: opacus.LedgerAccountant(run),
    "lightning": lambda run, _: lightning.LedgerCallback(run),
    "jax": lambda run, _: jax_adapter.authorized(step, run, event=STEP),
    "keras": lambda run, _: keras_adapter.attach(dense(), run, event=STEP),
    "mindarmour": lambda run, _: armoured(run),
    "mindarmour monitor": lambda run, _: armour.RDPMonitor(100, 10, target_delta=1e-5, run=run),
    "monitor": lambda run, _: PrivacyMonitor(LedgerClient.__new__(LedgerClient), run, **PLAN),
    "mlflow": lambda run, _: mlflow.EpsilonLogger(run),
    "wandb": lambda run, _: wandb.EpsilonLogger(run),
}


def _engine() -> PrivacyEngine:
    engine = PrivacyEngine.__new__(PrivacyEngine)
    engine.dataset, engine.accountant = None, torch.nn.Identity()
    engine.accountant.mechanism = lambda: "rdp"
    return engine


@pytest.fixture
def training(engine: PrivacyEngine) -> Training:
    return make_private(engine)


@pytest.mark.filterwarnings("ignore::epsilon_ledger.mindarmour.PrivacyWarning")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_only_run_that_answers_at_once_can_be_charged(training: Training, adapter: str) -> None:
    attach = ADAPTERS[adapter]
    with pytest.raises(TypeError, match="An adapter cannot wait for an AsyncRun: create the run with LedgerClient"):
        attach(ASYNC, training)
    for other in ("run_1", Run):
        with pytest.raises(TypeError, match=r"run is .*, but it must be a run of the ledger"):
            attach(other, training)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"sampling_probability": "0.5"}, TypeError, "sampling_probability must be a number"),
        ({"sampling_probability": True}, TypeError, "sampling_probability must be a number"),
        ({"sampling_probability": math.nan}, ValueError, "sampling_probability must be in"),
        ({"releases_per_sample": 1.5}, TypeError, "releases_per_sample must be a whole number"),
        ({"epochs": math.nan}, TypeError, "epochs must be a whole number"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"public_size": "64"}, TypeError, "public_size must be a whole number"),
        ({"earlier_steps": "ignore"}, ValueError, "'refuse', 'report' or 'charged', not 'ignore'"),
        ({"data_loader": [1, 2]}, TypeError, "must be the DataLoader that make_private returned"),
        ({"event": STEP}, TypeError, "event must be a function"),
    ],
)
def test_wrong_arguments_of_opacus_are_named(
    training: Training, fake_run: FakeRun, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        opacus.attach(training.optimizer, fake_run.as_run, **{"data_loader": training.loader} | options)
    assert training.optimizer.step_hook is not None  # Opacus' own
    assert not isinstance(training.optimizer.step_hook, opacus.LedgerHook)


def test_wrong_arguments_of_functions_beside_attach_are_named(training: Training) -> None:
    client: Any = None
    goal: dict[str, Any] = {"target_epsilon": 1.0, "target_delta": 1e-5}
    plain: Any = SGD(training.model.parameters(), 0.1)
    for other in (plain, "optimizer"):
        with pytest.raises(TypeError, match="must be the DPOptimizer"):
            opacus.discard_batch(other)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"epochs": 1, "public_size": 1.5}, "public_size must be a whole number"),
    ]
    for options, match in wrong:
        with pytest.raises(TypeError, match=match):
            opacus.plan_training(client, small_loader(), **goal, **options)
    with pytest.raises(TypeError, match="must be the DataLoader"):
        opacus.plan_training(client, [1], epochs=1, **goal)
    with pytest.raises(TypeError, match="and the optimizer that make_private returned, not DPDataLoader and SGD"):
        lightning.split_batches(training.loader, 2, plain)
    with pytest.raises(ValueError, match="max_batch_size must be at least 1"):
        lightning.split_batches(training.loader, 0, training.optimizer)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.inf, math.nan])
def test_wrong_clipping_norm_of_optax_is_refused(fake_run: FakeRun, norm: float) -> None:
    noise = optax.contrib.differentially_private_aggregate(norm, 2.0, key=jax_adapter.secret_key())
    with pytest.raises(ValueError, match="The clipping norm must be in"):
        jax_adapter.authorized(step, fake_run.as_run, noise=noise, batches=0.5)


def test_wrong_arguments_of_jax_are_named(fake_run: FakeRun) -> None:
    private = {"noise": jax_trainings.privatizer(0), "clipped_grad": jax_trainings.GRAD}
    with pytest.raises(TypeError, match="noise must be a transformation"):
        jax_adapter.authorized(step, fake_run.as_run, noise="gaussian", batches=0.5)
    with pytest.raises(jax_adapter.UnsupportedTrainingError, match="How bool selects"):
        jax_adapter.authorized(step, fake_run.as_run, **private, batches=True)
    for batches in (np.float32(0.5), jax_trainings.POISSON):
        private_step = jax_adapter.authorized(step, fake_run.as_run, **private, batches=batches)
        for records in (1.5, math.nan, "64", None):
            with pytest.raises(TypeError, match="num_examples must be a whole number"):
                next(private_step.batch_iterator(records))
        with pytest.raises(ValueError, match="num_examples must be at least 1"):
            next(private_step.batch_iterator(-1))
    assert fake_run.asked == []


def test_wrong_arguments_of_keras_are_named(fake_run: FakeRun) -> None:
    with pytest.raises(ValueError, match="earlier_steps must be 'refuse' or 'charged', not 'report'"):
        keras_adapter.attach(dense(), fake_run.as_run, event=STEP, earlier_steps="report")  # type: ignore[arg-type]


def test_wrong_arguments_of_mindarmour_are_named(fake_run: FakeRun) -> None:
    records = np.zeros((16, 2)), np.zeros(16)
    for name in ("noise_mech", "clip_mech"):
        with pytest.raises(TypeError, match=f"{name} must come from"):
            armoured(fake_run, **{name: "Gaussian"})
    with pytest.raises(TypeError, match=r"must be arrays \(data, label\)"):
        armoured(fake_run).train(1, None)
    with pytest.raises(TypeError, match="must have step_end"):
        armoured(fake_run).train(1, records, callbacks="monitor")
    assert fake_run.asked == []


@pytest.mark.parametrize("budget", [None, "", 3, "hospitals/{hospital}", "hospitals/{"])
def test_wrong_budget_of_nvflare_is_named(budget: Any) -> None:
    with pytest.raises(ValueError, match=r"budget must be a path such as 'hospitals/\{site\}'"):
        nvflare.LedgerFilter(budget, 1.0, 1.0)
    with pytest.raises(ValueError, match="budget must be a path"):
        nvflare.LedgerFedAvg(budget, 1.0, 1.0)


def test_wrong_arguments_of_nvflare_are_named() -> None:
    anything: Any = "person"
    for make in (nvflare.LedgerFilter, nvflare.LedgerFedAvg):
        with pytest.raises(ValueError, match="unit must be 'client' or 'record', not 'person'"):
            make("hospitals", 1.0, 1.0, unit=anything)
    with pytest.raises(TypeError, match="event must be an event"):
        nvflare.LedgerFilter("hospitals", event=anything)
    wrong: list[tuple[Any, type[Exception]]] = [(1.5, TypeError), ("3", TypeError), (0, ValueError)]
    for name in ("num_clients", "num_rounds"):
        for number, error in wrong:
            with pytest.raises(error, match=f"{name} must be"):
                nvflare.LedgerFedAvg("hospitals", 1.0, 1.0, **{name: number})


@pytest.mark.parametrize("logger", [mlflow.EpsilonLogger, wandb.EpsilonLogger])
def test_wrong_arguments_of_loggers_are_named(fake_run: FakeRun, logger: Any) -> None:
    for every in (1.5, math.nan, "2", True):
        with pytest.raises(TypeError, match="every must be a whole number"):
            logger(fake_run.as_run, every=every)


@pytest.mark.parametrize("event", [None, "gaussian", 3, {"type": "self_composed", "event": 3, "count": 1}])
def test_wrong_event_for_dp_accounting_is_refused(event: Any) -> None:
    with pytest.raises(UntranslatableEventError, match="it is no event of the ledger"):
        to_dp_accounting(event)
