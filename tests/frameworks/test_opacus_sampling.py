"""How records are drawn: read off the loader at each step, and believed of nobody."""

import pytest
import torch
from opacus import PrivacyEngine

from epsilon_ledger import gaussian, poisson_sampled
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, make_private, small_loader
from tests.sdk.fake_runs import BATCH, FakeRun, N

Q = BATCH / N  # a power of 2, which random floats meet exactly
STEP = poisson_sampled(Q, gaussian(1.0))

pytestmark = HOOKS_WARN


def test_a_probability_below_the_samplers_is_not_believed(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine)
    with pytest.raises(
        UnsupportedTrainingError, match=r"=0\.001 is stated, but the loader's sampler draws with 0\.125"
    ):
        attach(training.optimizer, fake_run.as_run, data_loader=training.loader, sampling_probability=0.001)
    # It may be stated too high, and is held against the sampler at each step.
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader, sampling_probability=0.2)
    training.step(next(iter(training.loader)))
    training.loader.batch_sampler.sample_rate = 0.5
    with pytest.raises(UnsupportedTrainingError, match=r"=0\.2 was stated, but this sample was drawn with 0\.5"):
        training.step(next(iter(training.loader)))
    assert fake_run.asked == [poisson_sampled(0.2, gaussian(1.0))]


@pytest.mark.parametrize("stated", [None, 0.125])
def test_without_a_loader_no_step_is_charged_as_a_sample(
    engine: PrivacyEngine, fake_run: FakeRun, stated: float | None
) -> None:
    fake_run.state.event = STEP
    training = make_private(engine)
    with pytest.raises(ValueError, match=r"Give data_loader=.*: each step is held to a draw of its own"):
        attach(training.optimizer, fake_run.as_run, sampling_probability=stated)


def test_a_sampling_rate_that_changes_is_followed(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run)
    training = make_private(engine)
    for batch, rate in zip(training.loader, (0.25, 0.0625, 0.125), strict=False):
        training.step(batch)
        training.loader.batch_sampler.sample_rate = rate
    assert [event["sampling_probability"] for event in fake_run.asked] == [0.125, 0.25, 0.0625]


def test_what_workers_drew_ahead_is_charged_as_it_was_drawn(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine, small_loader(workers=1))
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    for step, batch in enumerate(training.loader):
        training.step(batch)
        if step == 1:
            training.loader.batch_sampler.sample_rate = 0.0625
    # Two batches lay ready when the rate fell; until they are used up the former rate holds.
    assert [event["sampling_probability"] for event in fake_run.asked] == [0.125] * 4 + [0.0625] * 4


def test_a_rate_that_floats_cannot_meet_is_charged_as_it_is_drawn(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    numbers = torch.rand(10_000).double() * 2**24
    assert torch.equal(numbers, numbers.round())
    training = make_private(engine)
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    for rate in (1e-8, 0.1):
        training.loader.batch_sampler.sample_rate = rate
        training.step(next(iter(training.loader)))
    # The smallest one, and the next one below: a plan for 0.1 covers it.
    drawn = 1677721 * 2**-24
    assert drawn < 0.1 < drawn + 2**-24
    assert fake_run.asked == [poisson_sampled(rate, gaussian(1.0)) for rate in (2**-24, drawn)]
    assert training.loader.batch_sampler.sample_rate == drawn


def test_a_shuffled_loader_is_turned_away_unless_the_user_says_how_to_charge_it(
    engine: PrivacyEngine, fake_run: FakeRun
) -> None:
    attach(engine, fake_run.as_run)
    with pytest.raises(UnsupportedTrainingError, match="does not draw Poisson samples"):
        make_private(engine, small_loader(shuffle=True), poisson_sampling=False)
    assert fake_run.asked == []


@pytest.mark.parametrize("relation", ["replace_one", "replace_special"])
def test_a_shuffled_loader_can_be_charged_as_if_each_step_saw_everybody(
    engine: PrivacyEngine, fake_run: FakeRun, relation: str
) -> None:
    fake_run.state.neighboring_relation = relation
    attach(engine, fake_run.as_run, sampling_probability=1.0)
    make_private(engine, small_loader(shuffle=True), poisson_sampling=False).epoch()
    assert fake_run.asked == [gaussian(1.0)] * (N // BATCH)


def test_a_record_more_would_change_all_batches_so_that_is_turned_away(
    engine: PrivacyEngine, fake_run: FakeRun
) -> None:
    attach(engine, fake_run.as_run, sampling_probability=1.0)
    loader = small_loader(shuffle=True)
    with pytest.raises(UnsupportedTrainingError, match=r"8 batches .* sums move by two norms"):
        make_private(engine, loader, poisson_sampling=False)


def test_one_batch_of_all_the_data_needs_no_sampling(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run, sampling_probability=1.0)
    make_private(engine, small_loader(batch_size=N), poisson_sampling=False).epoch()
    assert fake_run.asked == [gaussian(1.0)]


def test_poisson_samples_may_be_charged_without_their_amplification(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    attach(engine, fake_run.as_run, sampling_probability=1.0)
    make_private(engine).epoch()
    assert fake_run.asked == [gaussian(1.0)] * 8
