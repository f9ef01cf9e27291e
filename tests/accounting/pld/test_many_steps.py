"""Hundreds of millions of steps: what each cell of a lattice is rounded up by adds up."""

import pytest

from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.formulas.gaussian_mixture import Mixture
from app.accounting.pld.discrete_gaussian import DiscreteGaussianPair
from app.accounting.pld.discrete_laplace import DiscreteLaplacePair
from app.accounting.pld.gaussian_mixture import GaussianMixturePair
from app.accounting.pld.pairs import FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.pld.plans import plan_delta, plan_epsilon

MANY = 1e9**0.5


@pytest.mark.parametrize("removes", [True, False])
def test_a_billion_steps_cost_little_more_than_the_truth(removes: bool) -> None:  # noqa: FBT001 - as the pair's
    """Errors of tails, which each cell of the lattice adds up, made it 1.42881."""
    plan: dict[Pair, int] = {SampledPair(1e-3, GaussianPair(100.0), removes): 10**9}
    assert 1.36761 <= plan_epsilon(plan, 1e-6) <= 1.3695


@pytest.mark.parametrize(
    "pair",
    [
        LaplacePair(MANY),
        DiscreteLaplacePair(1 / MANY, 1),
        DiscreteGaussianPair(MANY, 1),
        FinitePair.exchanged(1 / MANY),
        SampledPair(1e-3, FinitePair.exchanged(1e3 / MANY), removes=True),
        GaussianMixturePair(Mixture.of(0.75 * MANY, (0.5, 1.0), (0.5, 0.5)), removes=False),
    ],
    ids=str,
)
def test_a_billion_steps_of_little_loss_are_about_one_gaussian(pair: Pair) -> None:
    assert plan_epsilon({pair: 10**9}, 1e-6) == pytest.approx(gaussian_epsilon(1.0, 1e-6), rel=1e-3)


def test_so_many_steps_that_nothing_is_proven_have_no_bound() -> None:
    tiny = SampledPair(0.138, FinitePair.exchanged(1.62e-7), removes=True)
    assert plan_epsilon({tiny: 10**18}, 1e-30) > 1e6
    assert plan_delta({LaplacePair(0.2): 10**9, SampledPair(2.7e-7, LaplacePair(0.4), removes=True): 474}, 0.0) == 1.0
