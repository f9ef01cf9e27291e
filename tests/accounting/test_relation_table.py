"""Which event costs what under which relation, in which wrapper: every cell is refused, or at least its exact truth.

A cell is a mechanism, a wrapper and a relation. Where it has a price, small instances are run by brute force: with an
output that shows who was taken where the mechanism allows it, and with one that does not, in both directions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from app.accounting import events as dp
from app.accounting.curves import PURE, RdpCurve
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.events.base import TYPE_BY_NAME
from app.accounting.rdp import curve_over
from tests.each import for_each
from tests.soak import thinned

from . import small_mechanisms as small
from .small_mechanisms import Data, Entry, Mechanism, Output

ADDED, REPLACED, SPECIALLY = NeighboringRelation
SHARP = {"nothing", "poisson_sampled", "poisson_sampled, rarely", "self_composed"}
"""Wrappers whose price is the truth or nearly so: there the worst instance must come near it."""

PRICED = 895
"""Cells with a price; another number means that something is refused, or no longer refused."""

ORDERS = np.array([1.0625, 1.5, 2.0, 3.0, 8.0, 64.0, 1024.0, PURE])
Q = 0.3
RUNS = 4.0
Reading = Callable[[Any, NeighboringRelation], Mechanism | None]
"""A mechanism of which an event is true under a relation; None: it is not true of this one there."""


def noisy_sum(event: dp.Gaussian | dp.Laplace | dp.DiscreteGaussian, _: NeighboringRelation) -> Mechanism:
    noise = {dp.Gaussian: small.gaussian, dp.Laplace: small.laplace, dp.DiscreteGaussian: small.integers}[type(event)]
    return lambda data: {(): noise(sum(map(small.number, data)), dp.noise_multiplier(event))}


def noisy_integers(event: dp.DiscreteLaplace, _: NeighboringRelation) -> Mechanism:
    """Release a sum of integers: a half stands for another unit that contributes nothing."""
    moved, parameter = event.sensitivity, event.noise_parameter
    return lambda data: {(): small.geometric_integers(moved * sum(int(small.number(each)) for each in data), parameter)}


def drawn_sum(event: dp.MixtureOfGaussians, _: NeighboringRelation) -> Mechanism:
    """Release a noisy sum to which each record contributes a multiple of its number, drawn by its own coins."""
    draws, noise = list(zip(event.sensitivities, event.sampling_probs, strict=True)), event.standard_deviation

    def total(drawn: Sequence[tuple[float, float]], data: Data) -> float:
        return sum(size * small.number(entry) for (size, _), entry in zip(drawn, data, strict=True))

    return lambda data: small.mixture(
        (prod(share for _, share in drawn), {(): small.gaussian(total(drawn, data), noise)})
        for drawn in product(draws, repeat=len(data))
    )


def microbatch(event: dp.Gaussian, _: NeighboringRelation) -> Mechanism:

    def run(data: Data) -> Output:
        batch = [entry for entry in data if not isinstance(entry, str)]
        mean = float(np.clip(5 * np.mean(batch), -1, 1)) if batch else 0.0
        return {(): small.gaussian(mean, dp.noise_multiplier(event))}

    return run


def sum_and_count(event: dp.AdaptiveClipping, _: NeighboringRelation) -> Mechanism:
    gradients, count = event.gradient_noise_multiplier, event.count_noise_stddev
    assert gradients is not None
    assert count is not None

    def run(data: Data) -> Output:
        total, within = sum(map(small.number, data)), sum(np.sign(small.number(entry)) / 2 for entry in data)
        return small.joint(
            [{"sum": small.gaussian(total, gradients, small.FEW)}, {"count": small.gaussian(within, count, small.FEW)}]
        )

    return run


def answers(event: dp.RandomizedResponse, relation: NeighboringRelation, *, absent_shows: bool) -> Mechanism | None:
    if relation is ADDED:
        return None
    even = np.full(event.num_buckets, 1 / event.num_buckets)

    def answer(entry: Entry) -> Output:
        if isinstance(entry, str):
            return {"silent": np.ones(1)} if entry == small.ABSENT and absent_shows else {"answer": even}
        own = np.eye(event.num_buckets)[0 if entry > 0 else 1]
        return {"answer": event.noise_parameter * even + (1 - event.noise_parameter) * own}

    return lambda data: small.joint(map(answer, data))


def locally(reading: Reading) -> Reading:
    """Let every record answer by itself, so that the output shows which were taken."""

    def alone(event: DpEvent, relation: NeighboringRelation) -> Mechanism | None:
        one = reading(event, relation)
        if relation is ADDED or one is None:
            return None
        return lambda data: small.joint(
            {"silent": np.ones(1)} if entry == small.ABSENT else one((entry,)) for entry in data
        )

    return alone


def choice(event: dp.Exponential, _: NeighboringRelation) -> Mechanism:

    def run(data: Data) -> Output:
        votes = np.array([sum(sign * small.number(entry) > 0 for entry in data) for sign in (1, -1)])
        weights = np.exp(event.epsilon * votes / 2)
        return {"choice": weights / weights.sum()}

    return run


def first_choice(event: dp.PermuteAndFlip, relation: NeighboringRelation) -> Mechanism:
    """Choose between two candidates by permute and flip; a record is for one and against the other."""
    moves = 2 if relation is REPLACED else 1

    def run(data: Data) -> Output:
        votes = np.array([1, -1]) * sum(map(small.number, data)) / moves
        accepted = np.exp(event.epsilon * (votes - votes.max()) / 2)
        # A candidate comes first in one half of the cases. The best one is always accepted.
        return {"choice": accepted / 2 + (1 - accepted[::-1]) * accepted / 2}

    return run


def concentrated(event: dp.Zcdp, relation: NeighboringRelation, bins: int = small.BINS) -> Mechanism:
    scale = (2.0 if relation is REPLACED else 1.0) / (2 * event.rho) ** 0.5

    def run(data: Data) -> Output:
        total = sum(map(small.number, data))
        noisy: Output = {"noisy": small.gaussian(total, scale, bins)}
        clear: Output = {"clear": np.eye(len(data) + 1)[sum(small.number(entry) > 0 for entry in data)]}
        return small.mixture([(1 - event.delta, noisy), (event.delta, clear)])

    return run


def stated(event: dp.EpsilonDelta, _: NeighboringRelation) -> Mechanism:

    def run(data: Data) -> Output:
        count = sum(small.number(entry) > 0 for entry in data)
        noisy: Output = {"noisy": small.truncated_geometric(count, len(data), event.epsilon)}
        clear: Output = {"clear": np.eye(len(data) + 1)[count]}
        return small.mixture([(1 - event.delta, noisy), (event.delta, clear)])

    return run


def tree(event: dp.TreeAggregation, relation: NeighboringRelation, *, absent_shows: bool) -> Mechanism | None:
    """Release the nodes of a tree over four steps that hold one of the first two, where the unit in question is.

    A record that was not taken contributes zero at its step; or the output shows it, and the later steps move up.
    """
    if relation is ADDED:
        return None
    assert event.step_counts == (4,)

    def run(data: Data) -> Output:
        taken = tuple(entry != small.ABSENT for entry in data) if absent_shows else ()
        steps = [entry for entry in data if entry != small.ABSENT] if absent_shows else data
        sums = [sum(map(small.number, steps[low:high])) for low, high in ((0, 1), (1, 2), (0, 2), (0, 4))]
        nodes: list[Output] = [{"node": small.gaussian(each, event.noise_multiplier, bins=4)} for each in sums]
        return small.joint([{taken: np.ones(1)}, *nodes])

    return run


def nothing(_: dp.NoOp, __: NeighboringRelation) -> Mechanism:
    return lambda _: {(): np.ones(1)}


class Leaf(NamedTuple):
    """A mechanism, and instances of it, the worst of which must reach a part of the price."""

    name: str
    event: DpEvent
    readings: Sequence[Reading]
    sharpness: float = 0.9


def showing_or_not(reading: Callable[..., Mechanism | None]) -> tuple[Reading, Reading]:
    """Let the output show who was absent, or not."""
    return partial(reading, absent_shows=True), partial(reading, absent_shows=False)


LEAVES = (
    Leaf("no_op", dp.NoOp(), (nothing,), sharpness=0),
    Leaf("gaussian", dp.Gaussian(2.0), (noisy_sum,)),
    # In a sample, a micro-batch of two is seldom whole.
    Leaf("gaussian, microbatch", dp.Gaussian(4.0, "microbatch"), (microbatch,), sharpness=0.2),
    Leaf("laplace", dp.Laplace(2.0), (noisy_sum,)),
    Leaf("discrete_gaussian", dp.DiscreteGaussian(2.0), (noisy_sum,)),
    Leaf("discrete_laplace", dp.DiscreteLaplace(0.5, 1), (noisy_integers,)),
    Leaf("discrete_laplace, by two", dp.DiscreteLaplace(0.3, 2), (noisy_integers,)),
    Leaf("mixture_of_gaussians", dp.MixtureOfGaussians(2.0, (0, 1), (0.4, 0.6)), (drawn_sum,), sharpness=0.8),
    Leaf("mixture, two sizes", dp.MixtureOfGaussians(2.0, (0.5, 1), (0.4, 0.6)), (drawn_sum,), sharpness=0.8),
    Leaf("adaptive_clipping", dp.AdaptiveClipping(gradient_noise_multiplier=3, count_noise_stddev=2), (sum_and_count,)),
    Leaf("randomized_response", dp.RandomizedResponse(0.6, 3), showing_or_not(answers)),
    Leaf("exponential", dp.Exponential(1.0), (locally(choice), choice)),
    Leaf("permute_and_flip", dp.PermuteAndFlip(1.0), (locally(first_choice), first_choice)),
    Leaf("zcdp", dp.Zcdp(0.1), (locally(partial(concentrated, bins=small.FEW)), concentrated)),
    Leaf("zcdp, delta", dp.Zcdp(0.1, delta=0.01), (locally(partial(concentrated, bins=small.FEW)), concentrated)),
    Leaf("epsilon_delta", dp.EpsilonDelta(1.0), (locally(stated), stated)),
    Leaf("epsilon_delta, delta", dp.EpsilonDelta(1.0, 0.01), (locally(stated), stated)),
    Leaf("tree_aggregation", dp.TreeAggregation(3.0, (4,)), showing_or_not(tree), sharpness=0.6),  # its bins are coarse
)

fixed, repeated, search = dp.SampledWithoutReplacement, dp.SampledWithReplacement, dp.RepeatAndSelect
SECOND = dp.Gaussian(3.0)
SUM = noisy_sum(SECOND, ADDED)
NONE_OR_HALF: tuple[Data, ...] = ((), (0.5,), (-0.5,))
TWO = ((1.0, 1.0), (1.0, -1.0), (-1.0, -1.0))
# Of three records one may be removed, and one may be added to them.
FEWER = (*TWO, (-1.0, -1.0, -1.0))
TWO_OR_THREE = (*FEWER, (1.0, 1.0, 1.0))
Of = Callable[[DpEvent], Mechanism]
"""A reading under a relation."""

Step = tuple[Callable[[DpEvent], DpEvent], Callable[[Of], Of]]
"""What is charged of an event that is wrapped, and the same by brute force."""


def each(event: Callable[[DpEvent], DpEvent], change: Callable[[Mechanism], Mechanism]) -> Step:
    return event, lambda reading: lambda inner: change(reading(inner))


def scheduled(reading: Of) -> Of:
    return lambda event: small.together(
        [reading(dp.with_noise_multiplier(event, dp.noise_multiplier(event) / (1 + t / 2))) for t in range(2)]
    )


def geometric(reached: NDArray[np.float64]) -> NDArray[np.float64]:
    return reached / RUNS / (1 - (1 - 1 / RUNS) * reached)


def poissons(reached: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(RUNS * (reached - 1))


def truncated(most: int) -> Step:
    return each(lambda e: dp.TruncatedPoissonSampled(3, Q, most, e), lambda m: small.poisson(Q, m, most))


STEPS: dict[str, Step] = {
    "nothing": each(lambda e: e, lambda m: m),
    "poisson_sampled": each(lambda e: dp.PoissonSampled(Q, e), lambda m: small.poisson(Q, m)),
    "poisson_sampled, rarely": each(lambda e: dp.PoissonSampled(0.01, e), lambda m: small.poisson(0.01, m)),
    "sampled_without_replacement": each(lambda e: fixed(3, 2, e), lambda m: small.fixed_batch(2, m)),
    "truncated": truncated(1),
    "truncated, seldom cut": truncated(2),
    "truncated, cut with one record more": truncated(3),
    "sampled_with_replacement": each(lambda e: repeated(3, 2, e), lambda m: small.with_replacement(2, m)),
    "composed": each(lambda e: dp.Composed((e, SECOND)), lambda m: small.together([m, SUM])),
    "self_composed": each(lambda e: dp.SelfComposed(e, 2), lambda m: small.together([m, m])),
    "group_privacy": each(lambda e: dp.GroupPrivacy(2, e), lambda m: small.grouped(2, m)),
    "repeat_and_select": each(lambda e: search(e, RUNS, 1), lambda m: small.best_of(m, geometric)),
    "repeat_and_select, Poisson": each(lambda e: search(e, RUNS, None), lambda m: small.best_of(m, poissons)),
    "decay": (lambda e: dp.Decay("time", 0.5, 2, e), scheduled),
}


@dataclass(frozen=True)
class Wrapper:
    """Steps, outermost first, and the entries of units beside the one in question, for each instance."""

    name: str
    others: Sequence[Data] = NONE_OR_HALF

    @property
    def steps(self) -> list[Step]:
        """From the mechanism outwards."""
        return [STEPS[name] for name in reversed(self.name.split(" of "))]

    def event(self, leaf: DpEvent) -> DpEvent:
        """What is charged."""
        return reduce(lambda inner, step: step[0](inner), self.steps, leaf)

    def run(self, reading: Of) -> Of:
        """The same by brute force, from a reading of the mechanism's event."""
        return reduce(lambda inner, step: step[1](inner), self.steps, reading)


WRAPPERS = (
    *map(Wrapper, ("nothing", "poisson_sampled", "poisson_sampled, rarely", "composed", "self_composed")),
    *map(Wrapper, ("group_privacy", "repeat_and_select", "repeat_and_select, Poisson", "decay")),
    Wrapper("sampled_without_replacement", TWO),
    Wrapper("truncated", TWO_OR_THREE),
    Wrapper("truncated, seldom cut", FEWER),
    Wrapper("truncated, cut with one record more", FEWER[1:]),
    Wrapper("sampled_with_replacement", TWO),
    *(
        Wrapper(f"poisson_sampled of {inner}")
        for inner in ("truncated", "composed", "self_composed", "group_privacy", "repeat_and_select", "decay")
    ),
    *map(Wrapper, ("decay of poisson_sampled", "poisson_sampled of poisson_sampled")),
    *map(Wrapper, ("group_privacy of poisson_sampled", "repeat_and_select of poisson_sampled")),
    Wrapper("group_privacy of composed of poisson_sampled", ((),)),
    Wrapper("self_composed of poisson_sampled", ((0.5,),)),
    Wrapper("sampled_without_replacement of group_privacy", TWO),
    Wrapper("truncated of group_privacy", FEWER),
    Wrapper("sampled_with_replacement of group_privacy", TWO),
    Wrapper("repeat_and_select of truncated", (*FEWER[::2], FEWER[3])),
    Wrapper("composed of sampled_without_replacement", ((1.0, -1.0),)),
)

NEIGHBOURS: dict[NeighboringRelation, tuple[tuple[Entry, Entry], ...]] = {
    ADDED: ((1.0, small.ABSENT), (-1.0, small.ABSENT)),
    REPLACED: ((1.0, -1.0),),
    SPECIALLY: ((1.0, small.SPECIAL), (-1.0, small.SPECIAL)),
}


@cache
def price(wrapper: Wrapper, leaf: Leaf, relation: NeighboringRelation) -> RdpCurve | None:
    """Get what a cell of the table costs; None: it is refused."""
    try:
        return curve_over(wrapper.event(leaf.event), ORDERS, relation)
    except UnsupportedEventError:
        return None


def pairs(
    wrapper: Wrapper, leaf: Leaf, relation: NeighboringRelation, differ: NeighboringRelation
) -> list[tuple[Output, Output]]:
    """Get the outputs of a cell's instances in both directions, on data sets that differ as by another relation."""
    found: list[tuple[Output, Output]] = []
    for reading, others in product(leaf.readings, wrapper.others):
        if reading(leaf.event, differ) is None:
            continue
        mechanism = wrapper.run(lambda event, reading=reading: reading(event, relation))(leaf.event)  # type: ignore[misc]
        for neighbours in NEIGHBOURS[differ]:
            first, second = (mechanism((entry, *others)) for entry in neighbours)
            found += [(first, second), (second, first)]
    return found


def share_of_price(curve: RdpCurve, p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Get the largest part of its price that an instance costs, over all orders, or epsilons where delta counts."""
    if curve.is_zero:
        return 0.0 if np.allclose(p, q, rtol=0, atol=1e-12) else np.inf
    nats = curve.nats()
    finite = np.isfinite(nats)
    if not curve.delta:
        return float((small.renyi(p, q, ORDERS[finite]) / nats[finite]).max())
    epsilons = np.linspace(0, nats[-1] if finite[-1] else 4, 7)
    return max(small.hockey_stick(p, q, epsilon) / delta_of(curve, epsilon) for epsilon in epsilons)


def delta_of(curve: RdpCurve, epsilon: float) -> float:
    """Get the delta that a curve proves (Canonne, Kamath, Steinke 2020, arXiv 2004.00010, Proposition 12)."""
    nats, a = curve.nats()[:-1], ORDERS[:-1]
    log_delta = ((a - 1) * (nats - epsilon + np.log1p(-1 / a)) - np.log(a)).min()
    return curve.delta_value() + (0.0 if epsilon >= curve.nats()[-1] else float(np.exp(min(log_delta, 0))))


def most_of_price(wrapper: Wrapper, leaf: Leaf, relation: NeighboringRelation, differ: NeighboringRelation) -> float:
    """Get the largest part of its price that an instance of a cell costs; 0 if it has none."""
    curve = price(wrapper, leaf, relation)
    if curve is None:
        return 0.0
    instances = [small.aligned(*pair) for pair in pairs(wrapper, leaf, relation, differ)]
    assert instances, f"a price under {relation} without an instance"
    return max(share_of_price(curve, p, q) for p, q in instances)


@pytest.mark.parametrize("turn", thinned(range(3), 3))
def test_a_cell_is_refused_or_costs_at_least_the_truth(turn: int) -> None:
    """Each third cell is of other mechanisms in other wrappers."""
    for_each([*product(LEAVES, WRAPPERS)][turn::3], lambda cell: f"{cell[0].name}, {cell[1].name}")(check)()


def check(cell: tuple[Leaf, Wrapper]) -> None:
    leaf, wrapper = cell
    shares = [most_of_price(wrapper, leaf, relation, relation) for relation in NeighboringRelation]
    assert max(shares) <= 1
    assert wrapper.name not in SHARP or max(shares) >= leaf.sharpness
    if price(wrapper, leaf, REPLACED) is not None and dp.unbounded_on_removal(wrapper.event(leaf.event)) is None:
        assert most_of_price(wrapper, leaf, REPLACED, ADDED) <= 1, "bounded on removal"


def test_the_table_has_every_type_of_event_and_so_many_cells_with_a_price() -> None:
    wrapped = [wrapper.event(LEAVES[1].event) for wrapper in WRAPPERS]
    assert {type(event) for event in (*wrapped, *(leaf.event for leaf in LEAVES))} == set(TYPE_BY_NAME.values())
    cells = [price(*cell) for cell in product(WRAPPERS, LEAVES, NeighboringRelation)]
    assert sum(cell is not None for cell in cells) == PRICED


def test_missing_record_is_seen_of_two_mechanisms() -> None:
    showing = {leaf.name for leaf in LEAVES if dp.unbounded_on_removal(leaf.event) is not None}
    assert showing == {"randomized_response", "tree_aggregation"}
    for leaf in LEAVES:
        if leaf.name in showing:
            with pytest.raises(UnsupportedEventError):
                curve_over(leaf.event, ORDERS, ADDED)
