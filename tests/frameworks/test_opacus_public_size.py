"""Sample rate, steps of an epoch and divisor come from a public size where the number of records is private."""

from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import Event, LedgerClient, gaussian, poisson_sampled
from epsilon_ledger._opacus.samples import drawable_probability
from epsilon_ledger.opacus import UnsupportedTrainingError, attach, plan_training
from tests.frameworks.conftest import HOOKS_WARN, Training, make_private
from tests.sdk.fake_runs import BATCH, FakeRun, N

pytestmark = HOOKS_WARN


def loader_of(records: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    x = torch.randn(records, 4)
    return DataLoader(TensorDataset(x, (x.sum(dim=1) > 0).long()), BATCH)


def shape(training: Training) -> tuple[float, ...]:
    """What of a training must not depend on the number of records."""
    sampler = training.loader.batch_sampler
    return sampler.sample_rate, len(training.loader), training.optimizer.expected_batch_size


def trained(records: int, run: FakeRun, **how: Any) -> tuple[tuple[float, ...], list[Event]]:  # noqa: ANN401 - passed on
    with pytest.warns(UserWarning, match="Secure RNG turned off"):
        engine = PrivacyEngine(accountant="rdp")
    attach(engine, run.as_run, **how)
    training = make_private(engine, loader_of(records))
    training.epoch()
    return shape(training), run.asked


@pytest.mark.parametrize("records", [N - 1, N, N + 1])
def test_neighbours_train_with_numbers_of_population(records: int, fake_run: FakeRun) -> None:
    numbers, asked = trained(records, fake_run)
    assert list(numbers) == [1 / 8, 8, 8]
    assert asked == [poisson_sampled(1 / 8, gaussian(1.0))] * 8


@pytest.mark.parametrize("records", [N, N + 1])
def test_public_size_of_training_comes_before_populations(records: int, fake_run: FakeRun) -> None:
    fake_run.state.population_size = 1_000_000
    numbers, asked = trained(records, fake_run, public_size=70)
    assert list(numbers) == [drawable_probability(1 / 9), 9, 7]
    assert len(asked) == 9


def test_public_number_of_records_is_left_alone(fake_run: FakeRun) -> None:
    fake_run.state.neighboring_relation = "replace_one"
    fake_run.state.population_size = 1_000
    assert trained(N + 1, fake_run)[0] == (drawable_probability(1 / 9), 9, 7)


def test_training_without_public_size_does_not_begin(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    fake_run.state.population_size = None
    attach(engine, fake_run.as_run)
    with pytest.raises(UnsupportedTrainingError, match=r"the number of records is private.*public_size="):
        make_private(engine)
    with pytest.raises(ValueError, match="public_size must be at least 1, not 0"):
        attach(engine, fake_run.as_run, public_size=0)


@pytest.mark.parametrize("size", [N * 2 + 1, N // 2 - 1])
def test_population_of_another_size_is_not_taken_for_data(engine: PrivacyEngine, fake_run: FakeRun, size: int) -> None:
    fake_run.state.population_size = size
    attach(engine, fake_run.as_run)
    with pytest.raises(UnsupportedTrainingError, match=f"declares {size} units, but this dataset has {N} records"):
        make_private(engine)


@pytest.mark.parametrize("records", [N - 1, N + 1])
def test_attached_later_divisor_is_public_and_loaders_rate_stays(
    engine: PrivacyEngine, fake_run: FakeRun, records: int
) -> None:
    training = make_private(engine, loader_of(records))
    rate, steps, _ = shape(training)
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    assert shape(training) == (rate, steps, int(N * rate))
    assert training.epoch() == steps


def test_loop_is_planned_for_public_size(trainer: LedgerClient) -> None:
    plan = plan_training(trainer, loader_of(N + 1), epochs=2, target_epsilon=2.0, target_delta=1e-5, public_size=N)
    assert plan.planned == {"event": poisson_sampled(1 / 8, gaussian(plan.noise_multiplier)), "count": 16}
