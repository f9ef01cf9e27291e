"""How records are drawn: read off the loader at each step, and believed of nobody."""

from typing import Any

import pytest
import torch
from opacus import PrivacyEngine

from epsilon_ledger import Event, gaussian, poisson_sampled
from epsilon_ledger.opacus import UnsupportedTrainingError, attach
from tests.frameworks.conftest import HOOKS_WARN, make_private, small_loader
from tests.frameworks.test_opacus_calibration import new_engine
from tests.sdk.fake_runs import BATCH, FakeRun, N

Q = BATCH / N  # a power of 2, which random floats meet exactly
STEP = poisson_sampled(Q, gaussian(1.0))

pytestmark = HOOKS_WARN


def test_probability_below_samplers_is_not_believed(engine: PrivacyEngine, fake_run: FakeRun) -> None:
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


def test_batches_drawn_ahead_are_charged_as_they_were_drawn(engine: PrivacyEngine, fake_run: FakeRun) -> None:
    training = make_private(engine, small_loader(workers=1))
    attach(training.optimizer, fake_run.as_run, data_loader=training.loader)
    for step, batch in enumerate(training.loader):
        training.step(batch)
        if step == 1:
            training.loader.batch_sampler.sample_rate = 0.0625
    # Two batches lay ready when the rate fell; until they are used up the former rate holds.
    assert [event["sampling_probability"] for event in fake_run.asked] == [0.125] * 4 + [0.0625] * 4


def test_rate_that_floats_cannot_meet_is_charged_as_it_is_drawn(engine: PrivacyEngine, fake_run: FakeRun) -> None:
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


@pytest.mark.parametrize("relation", ["replace_one", "replace_special", "add_or_remove_one"])
def test_batches_without_sampling_are_charged_as_if_each_saw_all_records(relation: str) -> None:
    def trained(loader: Any, probability: float | None, **terms: Any) -> list[Event]:  # noqa: ANN401 - passed on
        run = FakeRun()
        run.state.neighboring_relation = relation
        engine = new_engine()
        attach(engine, run.as_run, sampling_probability=probability)
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


@pytest.mark.parametrize("stated", [None, 0.125])
def test_step_without_loader_is_not_charged_as_sample(
    engine: PrivacyEngine, fake_run: FakeRun, stated: float | None
) -> None:
    fake_run.state.event = STEP
    training = make_private(engine)
    with pytest.raises(ValueError, match=r"Give data_loader=.*: each step is held to a draw of its own"):
        attach(training.optimizer, fake_run.as_run, sampling_probability=stated)
