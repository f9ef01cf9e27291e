"""What several steps share is one sample: charged as one event before the first of them, or refused."""

import pytest
from opacus import PrivacyEngine

from epsilon_ledger import composed, gaussian, poisson_sampled, self_composed
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, Training, make_private, small_loader
from tests.sdk.fake_runs import BATCH, FakeRun, N

Q = BATCH / N
STEP = poisson_sampled(Q, gaussian(1.0))

pytestmark = HOOKS_WARN


def two_heads(engine: PrivacyEngine) -> tuple[Training, Training]:
    """Two networks, each with its optimizer, that are trained on one loader."""
    loader = small_loader()
    first = make_private(engine, loader)
    second = make_private(engine, loader, noise_multiplier=2.0)
    second.loader = first.loader
    return first, second


def test_a_sample_of_two_optimizers_is_not_charged_as_two(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    first, second = two_heads(engine)
    for training in (first, second):
        attach(training.optimizer, fake_run.as_run, data_loader=first.loader)
    batch = next(iter(first.loader))
    first.step(batch)
    with pytest.raises(UnsupportedTrainingError, match=r"released already.* attach them together"):
        second.step(batch)
    assert fake_run.asked == [STEP]


def test_optimizers_that_share_each_sample_are_charged_as_one_event(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    first, second = two_heads(engine)
    attach((first.optimizer, second.optimizer), fake_run.as_run, data_loader=first.loader)
    for place, batch in enumerate(first.loader):
        for training in (first, second) if place % 2 else (second, first):
            training.step(batch)
            with pytest.raises(UnsupportedTrainingError, match="released already"):
                training.step(batch)
    together = poisson_sampled(Q, composed([gaussian(1.0), gaussian(2.0)]))
    assert fake_run.asked == [together] * (N // BATCH)


def test_several_steps_with_each_sample_are_charged_as_one_event(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run, releases_per_sample=5)
    training = make_private(engine)
    for batch in training.loader:
        for _ in range(5):
            training.step(batch)
        with pytest.raises(UnsupportedTrainingError, match="released already"):
            training.step(batch)
    assert fake_run.asked == [poisson_sampled(Q, self_composed(gaussian(1.0), 5))] * (N // BATCH)
    assert engine.accountant.events[0]["count"] == N // BATCH
    with pytest.raises(ValueError, match="at least 1, not 0"):
        attach(training.optimizer, fake_run.as_run, releases_per_sample=0)


def test_noise_that_moves_within_a_sample_is_not_what_was_charged(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run, releases_per_sample=2)
    training = make_private(engine)
    batches = iter(training.loader)
    batch = next(batches)
    training.step(batch)
    training.optimizer.noise_multiplier = 0.5
    with pytest.raises(UnsupportedTrainingError, match="Move noise and clipping norms only between samples"):
        training.step(batch)
    batch = next(batches)
    training.step(batch)
    training.step(batch)
    assert fake_run.asked == [poisson_sampled(Q, self_composed(gaussian(z), 2)) for z in (1.0, 0.5)]
