"""How records are drawn: read off the loader at each step, from a public size, and believed of nobody."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import optimizer as opacus_noise

from epsilon_ledger import Event, LedgerClient, gaussian, poisson_sampled
from epsilon_ledger._opacus import generators
from epsilon_ledger._opacus.samples import drawable_probability
from epsilon_ledger.opacus import UnsupportedTrainingError, attach, plan_training
from tests.frameworks.conftest import ADAPTIVE, STEP, Training, make_private, new_engine, small_loader
from tests.sdk.fake_ledger import FakeRun, N


def test_probability_without_loader_or_below_samplers_is_not_believed(engine: PrivacyEngine, run: FakeRun) -> None:
    run.hear(event=STEP)
    training = make_private(engine)
    for stated in (None, 0.125):
        with pytest.raises(ValueError, match=r"Give data_loader=.*: each step is held to a draw of its own"):
            attach(training.optimizer, run, sampling_probability=stated)
    given: dict[str, Any] = {"data_loader": training.loader}
    with pytest.raises(
        UnsupportedTrainingError, match=r"=0\.001 is stated, but the loader's sampler draws with 0\.125"
    ):
        attach(training.optimizer, run, **given, sampling_probability=0.001)
    # It may be stated too high, and is held against the sampler at each step.
    attach(training.optimizer, run, **given, sampling_probability=0.2)
    training.step(next(iter(training.loader)))
    training.loader.batch_sampler.sample_rate = 0.5
    with pytest.raises(UnsupportedTrainingError, match=r"=0\.2 was stated, but this sample was drawn with 0\.5"):
        training.step(next(iter(training.loader)))
    assert run.asked == [poisson_sampled(0.2, gaussian(1.0))]


def test_batches_drawn_ahead_are_charged_as_they_were_drawn(engine: PrivacyEngine, run: FakeRun) -> None:
    training = make_private(engine, small_loader(workers=1))
    attach(training.optimizer, run, data_loader=training.loader)
    for step, batch in enumerate(training.loader):
        training.step(batch)
        if step == 1:
            training.loader.batch_sampler.sample_rate = 0.0625
    # Two batches lay ready when the rate fell; until they are used up the former rate holds.
    assert [event["sampling_probability"] for event in run.asked] == [0.125] * 4 + [0.0625] * 4


def test_rate_that_floats_cannot_meet_is_charged_as_it_is_drawn(engine: PrivacyEngine, run: FakeRun) -> None:
    numbers = torch.rand(10_000).double() * 2**24
    assert torch.equal(numbers, numbers.round())
    training = make_private(engine)
    attach(training.optimizer, run, data_loader=training.loader)
    for rate in (1e-8, 0.1):
        training.loader.batch_sampler.sample_rate = rate
        training.step(next(iter(training.loader)))
    # The smallest one, and the next one below: a plan for 0.1 covers it.
    drawn = 1677721 * 2**-24
    assert drawn < 0.1 < drawn + 2**-24
    assert run.asked == [poisson_sampled(rate, gaussian(1.0)) for rate in (2**-24, drawn)]
    assert training.loader.batch_sampler.sample_rate == drawn


@pytest.mark.parametrize("relation", ["replace_one", "replace_special", "add_or_remove_one"])
def test_batches_without_sampling_are_charged_as_if_each_saw_all_records(relation: str) -> None:
    def trained(loader: Any, probability: float | None, **terms: Any) -> list[Event]:  # noqa: ANN401 - passed on
        run = FakeRun(neighboring_relation=relation)
        engine = new_engine()
        attach(engine, run, sampling_probability=probability)
        make_private(engine, loader, **terms).epoch()
        return run.asked

    unsampled = {"poisson_sampling": False}
    with pytest.raises(UnsupportedTrainingError, match="does not draw Poisson samples"):
        trained(small_loader(shuffle=True), None, **unsampled)
    assert trained(small_loader(), 1.0) == [gaussian(1.0)] * 8
    assert trained(small_loader(batch_size=N), 1.0, **unsampled) == [gaussian(1.0)]
    if relation == "add_or_remove_one":  # a record more would change all batches
        with pytest.raises(UnsupportedTrainingError, match=r"8 batches .* sums move by two norms"):
            trained(small_loader(shuffle=True), 1.0, **unsampled)
    else:
        assert trained(small_loader(shuffle=True), 1.0, **unsampled) == [gaussian(1.0)] * 8


# Sample rate, steps of an epoch and divisor come from a public size where the number of records is private.


def shape(training: Training) -> tuple[float, ...]:
    """What of a training must not depend on the number of records."""
    sampler = training.loader.batch_sampler
    return sampler.sample_rate, len(training.loader), training.optimizer.expected_batch_size


NINTH = drawable_probability(1 / 9)
SIZES: dict[str, tuple[dict[str, Any], dict[str, Any], list[int], tuple[float, ...]]] = {
    "of the population": ({}, {}, [N - 1, N, N + 1], (1 / 8, 8, 8)),
    "of the training": ({"population_size": 1_000_000}, {"public_size": 70}, [N, N + 1], (NINTH, 9, 7)),
    "of public records": (
        {"neighboring_relation": "replace_one", "population_size": 1_000},
        {},
        [N + 1],
        (NINTH, 9, 7),
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_neighbours_train_with_numbers_of_public_size(name: str) -> None:
    """The state of a run, arguments of attach, numbers of records; and rate, steps and divisor."""
    state, how, sizes, wanted = SIZES[name]
    for records in sizes:
        run, engine = FakeRun(**state), new_engine()
        attach(engine, run, **how)
        training = make_private(engine, small_loader(records=records))
        training.epoch()
        assert shape(training) == wanted
        assert run.asked == [poisson_sampled(wanted[0], gaussian(1.0))] * int(wanted[1])


def test_training_with_wrong_or_without_public_size_does_not_begin(run: FakeRun) -> None:
    reasons = {
        None: r"the number of records is private.*public_size=",
        N * 2 + 1: f"declares {N * 2 + 1} units, but this dataset has {N} records",
        N // 2 - 1: f"declares {N // 2 - 1} units, but this dataset has {N} records",
    }
    for size, reason in reasons.items():
        run.hear(population_size=size)
        engine = new_engine()
        attach(engine, run)
        with pytest.raises(UnsupportedTrainingError, match=reason):
            make_private(engine)
    with pytest.raises(ValueError, match="public_size must be at least 1, not 0"):
        attach(engine, run, public_size=0)


@pytest.mark.parametrize("records", [N - 1, N + 1])
def test_attached_later_divisor_is_public_and_loaders_rate_stays(
    engine: PrivacyEngine, run: FakeRun, records: int
) -> None:
    training = make_private(engine, small_loader(records=records))
    rate, steps, _ = shape(training)
    attach(training.optimizer, run, data_loader=training.loader)
    assert shape(training) == (rate, steps, int(N * rate))
    assert training.epoch() == steps


def test_loop_is_planned_for_public_size(trainer: LedgerClient) -> None:
    plan = plan_training(
        trainer, small_loader(records=N + 1), epochs=2, target_epsilon=2.0, target_delta=1e-5, public_size=N
    )
    assert plan.planned == {"event": poisson_sampled(1 / 8, gaussian(plan.noise_multiplier)), "count": 16}


# Secure mode: its generator makes all noise and samples, and stays.


@pytest.fixture
def secure(engine: PrivacyEngine) -> PrivacyEngine:
    """An engine in secure mode, with torch's generator in the place of torchcsprng's, which no current torch has."""
    engine.secure_mode, engine.secure_rng = True, torch.Generator().manual_seed(5)
    return engine


def test_secure_generator_makes_all_noise_and_samples(secure: PrivacyEngine, run: FakeRun) -> None:
    attach(secure, run)
    training = make_private(secure)
    assert training.optimizer.generator is training.loader.batch_sampler.generator is secure.secure_rng
    assert training.optimizer.secure_mode
    with patch.object(opacus_noise.torch, "normal", wraps=torch.normal) as normal:
        steps = training.epoch()
    # Each parameter's noise: one value thrown away, and the sum of four.
    assert normal.call_count == steps * len(training.optimizer.params) * 5
    assert all(call.kwargs["generator"] is secure.secure_rng for call in normal.call_args_list)
    assert run.asked == [STEP] * steps


class StatelessGenerator(torch.Generator):
    """A generator whose state nobody can read, as torchcsprng's."""

    def get_state(self) -> torch.Tensor:
        raise RuntimeError("not implemented")


@pytest.mark.parametrize("stateless", [True, False])
def test_secure_generator_is_filled_anew_only_if_it_has_state(
    secure: PrivacyEngine, run: FakeRun, *, stateless: bool
) -> None:
    generator = secure.secure_rng = StatelessGenerator() if stateless else torch.Generator()
    attach(secure, run)
    training = make_private(secure)
    training.optimizer.generator = training.loader.batch_sampler.generator = None
    with patch.object(generators, "_fill", wraps=generators._fill) as fill:
        assert run.asked == [STEP] * training.epoch()
    assert training.optimizer.generator is training.loader.batch_sampler.generator is generator
    assert bool(fill.call_count) is not stateless


def test_noise_of_count_that_is_not_secure_is_refused(secure: PrivacyEngine, run: FakeRun) -> None:
    attach(secure, run)
    training = make_private(secure, **ADAPTIVE)
    with pytest.raises(UnsupportedTrainingError, match="noise of its count as a single value"):
        training.epoch()
    assert (training.is_unchanged(), run.asked) == (True, [])
