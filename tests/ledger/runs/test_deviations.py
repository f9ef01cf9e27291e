"""Declared versus observed: in what steps differ, and where first."""

import pytest

from app.accounting import events as dp
from app.accounting.events import DpEvent
from app.ledger.runs.deviations import Deviation, DeviationKind, merge_deviations
from app.ledger.runs.run import Run, RunDeclaration, RunStatus, find_deviations
from app.ledger.step_events import StepEvent
from app.persistence.repositories.runs import deviations_text, read_deviations

K = DeviationKind
POISSON = "poisson_sampled"
DECLARED = dp.PoissonSampled(0.01, dp.Gaussian(1.1))
RUN = Run("run_1", RunStatus.ACTIVE, DECLARED, attempt=1, next_step=0, decisions=0, chain_head=b"")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (DECLARED, {}),
        (dp.PoissonSampled(0.1 * 0.1, dp.Gaussian(1.1 * (1 + 2**-24))), {}),
        (dp.PoissonSampled(0.01, dp.Gaussian(1.0)), {K.NOISE_MULTIPLIER: (1.1, 1.0)}),
        (dp.PoissonSampled(0.02, dp.Gaussian(1.1)), {K.SAMPLING_PROBABILITY: (0.01, 0.02)}),
        (dp.PoissonSampled(0.01, dp.Laplace(1.1)), {K.MECHANISM: ("gaussian", "laplace")}),
        (dp.SampledWithoutReplacement(100, 1, dp.Gaussian(1.1)), {K.SAMPLER: (POISSON, "sampled_without_replacement")}),
        (
            dp.SampledWithReplacement(100, 2, dp.Gaussian(1.1)),
            {K.SAMPLER: (POISSON, "sampled_with_replacement"), K.SAMPLING_PROBABILITY: (0.01, 0.02)},
        ),
        (
            dp.PoissonSampled(0.01, dp.MixtureOfGaussians(2.2, (1.0, 2.0), (0.5, 0.5))),
            {K.MECHANISM: ("gaussian", "mixture_of_gaussians")},
        ),
        (
            dp.PoissonSampled(0.01, dp.DiscreteLaplace(0.5, 1)),
            {K.MECHANISM: ("gaussian", "discrete_laplace"), K.NOISE_MULTIPLIER: (1.1, 2.0)},
        ),
        (
            dp.PoissonSampled(0.01, dp.PermuteAndFlip(0.5)),
            {K.MECHANISM: ("gaussian", "permute_and_flip"), K.NOISE_MULTIPLIER: (1.1, None)},
        ),
        (dp.Gaussian(1.1), {K.SAMPLER: (POISSON, "none"), K.SAMPLING_PROBABILITY: (0.01, 1.0)}),
        (dp.SelfComposed(DECLARED, 2), {K.EVENT: (POISSON, "self_composed")}),
        (
            dp.PoissonSampled(0.01, dp.Composed((dp.Gaussian(1.1), dp.Laplace(1.2)))),
            {K.MECHANISM: ("gaussian", "gaussian, laplace")},
        ),
    ],
    ids=str,
)
def test_event_that_differs_from_the_declared_one_has_its_deviations(
    event: DpEvent, expected: dict[K, tuple[object, object]]
) -> None:
    found = find_deviations(RUN._replace(next_step=7), (), [StepEvent(DECLARED, 3), StepEvent(event, 1)], 0.0)
    assert {each.kind: (each.declared, each.observed) for each in found} == expected
    assert {each.first_step for each in found} <= {10}


def test_planned_event_is_declared_and_an_undeclared_run_has_no_deviations() -> None:
    loud = StepEvent(dp.PoissonSampled(0.5, dp.Gaussian(0.5)), 1)
    assert find_deviations(RUN, [loud], [loud], 0.0) == ()
    assert find_deviations(RUN._replace(event=None), (), [loud], 0.0) == ()
    quiet = StepEvent(dp.PoissonSampled(0.5, dp.Gaussian(50.0)), 1)
    assert find_deviations(RUN._replace(event=None), [loud, quiet], [quiet, loud], 0.0) == ()
    found = find_deviations(RUN._replace(event=None), [quiet], [quiet, loud], 0.0)
    assert found == (Deviation(K.NOISE_MULTIPLIER, 50.0, 0.5, 1),)


def test_run_with_more_steps_than_planned_has_a_deviation() -> None:
    run = RUN._replace(declaration=RunDeclaration(expected_steps=10))
    assert find_deviations(run._replace(next_step=8), (), [StepEvent(DECLARED, 2)], 0.0) == ()
    assert find_deviations(run._replace(next_step=8), (), [StepEvent(DECLARED, 5)], 0.0) == (
        Deviation(K.STEPS, 10, 13, 10),
    )
    assert find_deviations(run._replace(next_step=12), (), [StepEvent(DECLARED, 1)], 0.0) == (
        Deviation(K.STEPS, 10, 13, 12),
    )


def test_run_faster_than_declared_has_a_deviation() -> None:
    run = RUN._replace(declaration=RunDeclaration(declared_steps_per_hour=10.0))
    for count in (1, 9, 10):
        assert find_deviations(run, (), [StepEvent(DECLARED, count)], 0.01) == ()
    assert find_deviations(run._replace(next_step=10), (), [StepEvent(DECLARED, 1)], 0.01) == (
        Deviation(K.STEPS_PER_HOUR, 10.0, 11.0, 10),
    )
    assert find_deviations(run._replace(next_step=10), (), [StepEvent(DECLARED, 10)], 2.0) == ()
    assert find_deviations(run._replace(next_step=20), (), [StepEvent(DECLARED, 4)], 2.0) == (
        Deviation(K.STEPS_PER_HOUR, 10.0, 12.0, 20),
    )


def test_first_deviation_of_each_kind_is_kept() -> None:
    first, second = Deviation(K.STEPS, 1, 2, 1), Deviation(K.STEPS, 1, 3, 2)
    other = Deviation(K.SAMPLER, "none", "poisson_sampled", 2)
    assert merge_deviations((), (first,)) == (first,)
    assert merge_deviations((first,), (second,)) == (first,)
    assert merge_deviations((first,), (second, other)) == (first, other)


def test_stored_deviation_of_a_whole_number_is_known_again() -> None:
    """JSON writes 60.0 as 60: each process that read a run added its deviations once more."""
    one, later = (Deviation(DeviationKind.NOISE_MULTIPLIER, 1.1, 60.0, step) for step in (0, 9))
    stored = read_deviations(deviations_text((one,)))
    assert merge_deviations(stored, (later,)) is stored


def test_less_noise_is_kept_after_more_noise_and_only_it_is_weaker() -> None:
    more, less = (Deviation(K.NOISE_MULTIPLIER, 1.1, noise, step) for noise, step in ((2.0, 3), (1.0, 5)))
    assert merge_deviations((more,), (less,)) == (more, less)
    steps = [StepEvent(dp.PoissonSampled(0.01, dp.Gaussian(noise)), 1) for noise in (2.0, 1.0)]
    assert [each.is_weaker for each in find_deviations(RUN, (), steps, 1.0)] == [False, True]
    rarer, denser = (Deviation(K.SAMPLING_PROBABILITY, 0.01, rate, 0) for rate in (0.001, 0.1))
    assert (rarer.is_weaker, denser.is_weaker) == (False, True)
    assert Deviation(K.MECHANISM, "gaussian", "laplace", 0).is_weaker
