"""Batches in pieces, and the ways to clip that Opacus has."""

import math
from itertools import islice
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import AdaClipDPOptimizer
from opacus.schedulers import StepGradClip
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping

from epsilon_ledger import BudgetExceededError, Event, adaptive_clipping, poisson_sampled
from epsilon_ledger.opacus import attach, discard_batch
from tests.frameworks.conftest import ADAPTIVE, STEP, Q, make_private, small_loader
from tests.frameworks.test_opacus_samples import GHOST, KINDS, first_step, pieces_of, refuses
from tests.sdk.fake_ledger import BATCH, STEPS_PER_EPOCH, FakeRun
from tests.soak import in_turns


@pytest.mark.parametrize("give_managed", [False, True])
def test_virtual_steps_are_asked_for_once_and_refusal_leaves_nothing_behind(
    engine: PrivacyEngine, *, give_managed: bool
) -> None:
    run = FakeRun(capacity=STEPS_PER_EPOCH + 1)
    training = make_private(engine)
    managed = pieces_of(training)
    attach(training.optimizer, run, data_loader=managed if give_managed else training.loader)
    assert training.epoch(managed) > STEPS_PER_EPOCH
    assert run.asked == [STEP] * STEPS_PER_EPOCH
    with pytest.raises(BudgetExceededError):
        training.epoch(managed)
    assert training.is_unchanged()
    assert all(p.summed_grad is None for p in training.optimizer.params)


def test_clipping_per_layer_costs_what_its_norms_cost_together(engine: PrivacyEngine, run: FakeRun) -> None:
    attach(engine, run)
    training = make_private(engine, clipping="per_layer", max_grad_norm=[0.3, 0.4, 0.5, 0.6])
    training.step(next(iter(training.loader)))
    # A scheduler moves what the noise follows, not what the layers are clipped to.
    StepGradClip(training.optimizer, step_size=1, gamma=0.5).step()
    training.step(next(iter(training.loader)))
    assert run.asked[0] == STEP
    second = run.asked[1]["event"]
    assert isinstance(second, dict)
    assert second["noise_multiplier"] == pytest.approx(0.5, rel=1e-6)


def test_adaptive_clipping_is_charged_with_its_count(engine: PrivacyEngine, run: FakeRun) -> None:
    attach(engine, run)
    training = make_private(engine, **ADAPTIVE)
    norms = [1.0]
    for batch in islice(training.loader, 3):
        training.step(batch)
        norms.append(float(training.optimizer.max_grad_norm))
    assert run.asked == [poisson_sampled(Q, adaptive_clipping(1.0))] * 3
    assert len(set(norms)) == 4
    run.ledger.capacity = 3
    with pytest.raises(BudgetExceededError):
        training.epoch()
    assert training.is_unchanged()
    # The count of a refused step moves no norm.
    assert float(training.optimizer.max_grad_norm) == norms[-1]
    discard_batch(training.optimizer)
    with refuses("BatchMemoryManager"):
        training.epoch(pieces_of(training))


@pytest.mark.parametrize("size", [1, 20])
def test_adapted_norm_tells_noisy_count_and_not_private_size_of_batch(
    engine: PrivacyEngine, run: FakeRun, size: int
) -> None:
    def moved(fraction: float) -> float:
        return math.exp(-0.2 * (fraction - 0.5))

    training = make_private(engine, **ADAPTIVE)
    attach(training.optimizer, run, sampling_probability=1.0)
    optimizer, noisy = training.optimizer, list[tuple[float, int]]()
    asked = optimizer.step_hook.read

    def look(seen: AdaClipDPOptimizer) -> Event:
        noisy.append((float(seen.unclipped_num), seen.sample_size))
        event: Event = asked(seen)
        return event

    optimizer.step_hook.read = look
    x = torch.randn(size, 4)
    training.step((x, (x[:, 0] > 0).long()))
    ((count, seen_size),) = noisy
    assert seen_size == size
    # With a function of one's own nothing is mended: Opacus divides by the private size.
    assert float(optimizer.max_grad_norm) == pytest.approx(moved(count / size), rel=1e-5)
    optimizer.max_grad_norm = 1.0
    optimizer.step_hook.read = asked
    sums: list[float] = []
    optimizer.attach_step_hook(lambda seen: sums.append(float(seen.unclipped_num)))
    training.step((x, (x[:, 0] > 0).long()))
    assert optimizer.sample_size == BATCH == optimizer.expected_batch_size
    assert float(optimizer.max_grad_norm) == pytest.approx(moved(sums[0] / BATCH), rel=1e-5)


def test_ghost_clipping_costs_same(engine: PrivacyEngine, run: FakeRun) -> None:
    attach(engine, run)
    training = make_private(engine, grad_sample_mode="ghost")
    assert run.asked == [STEP] * training.epoch()
    before = training.parameters()
    StepGradClip(training.optimizer, step_size=1, gamma=0.5).step()
    with refuses("it is the module that clips"):
        training.step(next(iter(training.loader)))
    assert all(map(torch.equal, before, training.parameters()))


def test_ghost_clipping_with_private_count_is_turned_away(run: FakeRun) -> None:
    with pytest.warns(UserWarning, match="Secure RNG"):
        engine = PrivacyEngineAdaptiveClipping(accountant="rdp")
    with refuses("private size of the batch"):
        attach(engine, run)
    training = make_private(engine, grad_sample_mode="ghost", noise_multiplier=0.1, target_unclipped_quantile=0.5)
    attach(training.optimizer, run, data_loader=training.loader, module=training.model)
    with refuses("private"):
        training.step(next(iter(training.loader)))
    assert run.asked == []


MODES = KINDS | {"adaptive": ADAPTIVE, "ghost": GHOST | {"criterion": torch.nn.CrossEntropyLoss()}}


@pytest.mark.parametrize(("mode", "value"), in_turns([*MODES, "accelerator"], [math.nan, math.inf, -math.inf]))
def test_gradient_that_is_not_finite_is_neither_charged_nor_released(
    engine: PrivacyEngine, run: FakeRun, monkeypatch: pytest.MonkeyPatch, mode: str, value: float
) -> None:
    if mode == "accelerator":
        monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    attach(engine, run)
    loader: Any = small_loader()
    loader.dataset.tensors[0][:, 1] = value
    training = make_private(engine, loader, **MODES.get(mode, {}))
    with refuses("has a NaN or an infinity"):
        first_step(training)
    assert run.asked == []
    assert training.is_unchanged()
    assert all(p.grad is None and p.summed_grad is None for p in training.optimizer.params)
    if mode == "flat":  # nor one of an earlier physical batch
        with refuses("has a NaN or an infinity"), pytest.warns(UserWarning, match="charged as drawn"):
            training.epoch(pieces_of(training))
        assert run.asked == [STEP]  # the batch that was left, so that no record decides how many are charged
