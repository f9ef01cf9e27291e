"""Wrong arguments of the adapters: each says what is wrong and what would be right, before anything is charged."""

# ruff: noqa: ANN401 - values of any type are what is tried

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch.optim import SGD

from epsilon_ledger import AsyncRun, LedgerClient, Run, gaussian, lightning, mlflow, nvflare, opacus, wandb
from epsilon_ledger import jax as jax_adapter
from epsilon_ledger import keras as keras_adapter
from epsilon_ledger import mindarmour as armour
from epsilon_ledger.monitor import PrivacyMonitor
from tests.frameworks.conftest import Training, make_private, small_loader
from tests.sdk.fake_ledger import FakeRun
from tests.sdk.test_mindarmour import build

STEP = gaussian(2.0)
PLAN: dict[str, Any] = {"num_samples": 100, "batch_size": 10, "max_eps": 1.0, "target_delta": 1e-5}


def dense() -> Any:
    return keras.Sequential([keras.layers.Dense(1)])


def step(x: Any) -> Any:
    return x


ADAPTERS: dict[str, Callable[[Any, Training], object]] = {
    "opacus": lambda run, training: opacus.attach(training.optimizer, run, data_loader=training.loader),
    "opacus engine": lambda run, _: opacus.attach(_engine(), run),
    "opacus accountant": lambda run, _: opacus.LedgerAccountant(run),
    "lightning": lambda run, _: lightning.LedgerCallback(run),
    "jax": lambda run, _: jax_adapter.authorized(step, run, event=STEP),
    "keras": lambda run, _: keras_adapter.attach(dense(), run, event=STEP),
    "mindarmour": lambda run, _: build(run),
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
        attach(AsyncRun.__new__(AsyncRun), training)
    for other in ("run_1", Run):
        with pytest.raises(TypeError, match=r"run is .*, but it must be a run of the ledger"):
            attach(other, training)


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sampling_probability": "0.5"}, TypeError, "sampling_probability must be a number"),
    ({"sampling_probability": True}, TypeError, "sampling_probability must be a number"),
    ({"sampling_probability": math.nan}, ValueError, "sampling_probability must be in"),
    ({"sampling_probability": 1.5}, ValueError, r"must be in \(0, 1\]"),
    ({"releases_per_sample": 1.5}, TypeError, "releases_per_sample must be a whole number"),
    ({"epochs": math.nan}, TypeError, "epochs must be a whole number"),
    ({"epochs": 0}, ValueError, "epochs must be at least 1"),
    ({"public_size": "64"}, TypeError, "public_size must be a whole number"),
    ({"earlier_steps": "ignore"}, ValueError, "'refuse', 'report' or 'charged', not 'ignore'"),
    ({"data_loader": [1, 2]}, TypeError, "must be the DataLoader that make_private returned"),
    ({"event": STEP}, TypeError, "event must be a function"),
]


def test_wrong_arguments_of_opacus_are_named(training: Training, run: FakeRun) -> None:
    for options, error, match in OPTIONS:
        with pytest.raises(error, match=match):
            opacus.attach(training.optimizer, run, **{"data_loader": training.loader} | options)
        assert not isinstance(training.optimizer.step_hook, opacus.LedgerHook)


def test_wrong_arguments_of_functions_beside_attach_are_named(training: Training) -> None:
    client: Any = None
    goal: dict[str, Any] = {"target_epsilon": 1.0, "target_delta": 1e-5}
    plain: Any = SGD(training.model.parameters(), 0.1)
    for other in (plain, "optimizer"):
        with pytest.raises(TypeError, match="must be the DPOptimizer"):
            opacus.discard_batch(other)
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (small_loader(), {"epochs": 1.5}, "epochs must be a whole number"),
        (small_loader(), {"epochs": 1, "public_size": 1.5}, "public_size must be a whole number"),
        ([1], {"epochs": 1}, "must be the DataLoader"),
    ]
    for loader, options, match in wrong:
        with pytest.raises(TypeError, match=match):
            opacus.plan_training(client, loader, **goal, **options)
    with pytest.raises(TypeError, match="and the optimizer that make_private returned, not DPDataLoader and SGD"):
        lightning.split_batches(training.loader, 2, plain)
    with pytest.raises(ValueError, match="max_batch_size must be at least 1"):
        lightning.split_batches(training.loader, 0, training.optimizer)


@pytest.mark.filterwarnings("ignore::epsilon_ledger.mindarmour.PrivacyWarning")
def test_wrong_arguments_of_keras_and_mindarmour_are_named(run: FakeRun) -> None:
    with pytest.raises(ValueError, match="earlier_steps must be 'refuse' or 'charged', not 'report'"):
        keras_adapter.attach(dense(), run, event=STEP, earlier_steps="report")  # type: ignore[arg-type]
    wrong: list[dict[str, Any]] = [{"noise_mech": "Gaussian"}, {"clip_mech": "Gaussian"}]
    for terms in wrong:
        with pytest.raises(TypeError, match=f"{next(iter(terms))} must come from"):
            build(run, **terms)
    with pytest.raises(TypeError, match=r"must be arrays \(data, label\)"):
        build(run).train(1, None)
    with pytest.raises(TypeError, match="must have step_end"):
        build(run).train(1, (np.zeros((64, 3)), np.zeros(64)), callbacks="monitor")
    assert run.asked == []


def test_wrong_arguments_of_nvflare_are_named() -> None:
    budgets: list[Any] = [None, "", 3, "hospitals/{hospital}", "hospitals/{"]
    anything: Any = "person"
    for make in (nvflare.LedgerFilter, nvflare.LedgerFedAvg):
        for budget in budgets:
            with pytest.raises(ValueError, match=r"budget must be a path such as 'hospitals/\{site\}'"):
                make(budget, 1.0, 1.0)
        with pytest.raises(ValueError, match="unit must be 'client' or 'record', not 'person'"):
            make("hospitals", 1.0, 1.0, unit=anything)
    noise: list[dict[str, Any]] = [{}, {"noise_multiplier": 1.0}, {"noise_multiplier": 1.0, "event": STEP}]
    for terms in noise:
        with pytest.raises(ValueError, match="Give noise_multiplier and clipping_norm, or the event"):
            nvflare.LedgerFilter("hospitals", **terms)
    with pytest.raises(TypeError, match="event must be an event"):
        nvflare.LedgerFilter("hospitals", event=anything)
    wrong: list[tuple[Any, type[Exception]]] = [(1.5, TypeError), ("3", TypeError), (0, ValueError)]
    for name in ("num_clients", "num_rounds"):
        for number, error in wrong:
            with pytest.raises(error, match=f"{name} must be"):
                nvflare.LedgerFedAvg("hospitals", 1.0, 1.0, **{name: number})


@pytest.mark.parametrize("logger", [mlflow.EpsilonLogger, wandb.EpsilonLogger])
def test_wrong_arguments_of_loggers_are_named(run: FakeRun, logger: Any) -> None:
    for every in (1.5, math.nan, "2", True):
        with pytest.raises(TypeError, match="every must be a whole number"):
            logger(run, every=every)
