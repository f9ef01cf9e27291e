"""Price events: the rounded-up curve of every event over any orders."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, singledispatch
from math import ceil, inf
from typing import Final

import numpy as np

from app.accounting.base_rdp import gaussian_noise, rdp
from app.accounting.concentrated_losses import concentrated_losses
from app.accounting.curves import EXHAUSTED, GRID_VERSION, HIGHEST, Floats, RdpCurve
from app.accounting.curves import orders as orders_of_grid
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    AdaptiveClipping,
    Batch,
    Composed,
    Decay,
    DpEvent,
    EpsilonDelta,
    Gaussian,
    GroupPrivacy,
    NeighboringRelation,
    PoissonSampled,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TruncatedPoissonSampled,
    Zcdp,
    scheduled_events,
    type_name,
    without_no_ops,
)
from app.accounting.exact_losses import ExactLosses, exact
from app.accounting.formulas.amplification import replace_sampled_rdp, sampled_epsilon_delta
from app.accounting.formulas.mechanisms import pure_dp_rdp
from app.accounting.formulas.random_batches import (
    MAX_OCCURRENCES,
    Shares,
    Truncation,
    failure_with_replacement,
    most_occurrences,
    truncated_poisson_rdp,
    truncated_poisson_replaced_rdp,
    with_replacement_rdp,
)
from app.accounting.formulas.repeat_and_select import repeat_and_select_rdp
from app.accounting.formulas.without_replacement import without_replacement_gaussian_rdp
from app.accounting.group_privacy import for_group, sampled_mixture, strip_group
from app.accounting.poisson_rdp import is_amplified
from app.accounting.pricing_effort import use_effort_of_curve
from app.accounting.pure_losses import pure_loss, worst_loss

__all__ = ["FORMULA_VERSION", "curve_by_type", "curve_over", "event_curve", "rdp"]

FORMULA_VERSION: Final = 1
"""Version of the pricing formulas, stored with each cost."""

SELECTION_GRID: Final = 1
"""Grid version over which selection, whose bound joins two orders, searches the second order."""


def event_curve(event: DpEvent, relation: NeighboringRelation, grid_version: int = GRID_VERSION) -> RdpCurve:
    """Compute the cost of one repetition of an event, rounded up.

    The last 256 curves are cached. A cache hit still counts as work, so that it cannot decide whether a request is
    too expensive.
    """
    use_effort_of_curve(event, orders_of_grid(grid_version).size, relation)
    return cached_event_curve(event, relation, grid_version)


@lru_cache(maxsize=256)
def cached_event_curve(event: DpEvent, relation: NeighboringRelation, grid_version: int) -> RdpCurve:
    """Compute or get from the cache the curve of `event_curve`, without counting work."""
    return curve_over(event, orders_of_grid(grid_version), relation)


def curve_over(event: DpEvent, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    """Compute the cost of one repetition of an event over any orders.

    Floats are rounded up once, at the events that have a formula; composition of the integers is exact. The result is
    equal up to float rounding to the whole grid's curve at these orders.

    `orders` is (n_orders,), increasing, in (1, 1024]; a higher order represents infinity.

    Raises:
        UnsupportedEventError: no proven formula covers this event under this relation.
    """
    released = without_no_ops(event)
    return curve_by_type(released, orders, relation).with_exact(exact_losses(released, relation))


def exact_losses(event: DpEvent, relation: NeighboringRelation) -> ExactLosses:
    """Compute the losses of an event that are kept exactly, of which each part releases something."""
    return ExactLosses(pure_loss(event, relation), *concentrated_losses(event, relation))


@singledispatch
def curve_by_type(event: DpEvent, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    """Compute what `curve_over` does, of an event of which each part releases something."""
    # Bun, Steinke 2016, Definition 8.1: but for an event of probability delta, the divergence is bounded.
    delta = exact(event.delta) if isinstance(event, EpsilonDelta | Zcdp) else 0.0
    return _rounded(lambda at: rdp(event, at, relation), orders, worst_loss(event, relation), delta)


def _rounded(
    formula: Callable[[Floats], Floats], orders: Floats, loss: float, delta: float | Fraction = 0.0
) -> RdpCurve:
    """Round up a formula, and the largest loss above order HIGHEST."""
    nats = np.full_like(orders, loss)
    computed = orders <= HIGHEST
    if computed.any():
        nats[computed] = formula(orders[computed])
    return RdpCurve.from_nats(nats, delta)


@curve_by_type.register
def _(event: Composed, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    total = RdpCurve.zero(orders.size)
    for part, count in Counter(event.events).items():
        total = total + curve_over(part, orders, relation).times(count)
    return total


@curve_by_type.register
def _(event: SelfComposed, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    return curve_over(event.event, orders, relation).times(event.count)


@curve_by_type.register
def _(event: GroupPrivacy, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    return curve_over(for_group(event.event, event.group_size), orders, relation)


@curve_by_type.register
def _(event: RepeatAndSelect, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    searched = np.union1d(orders, orders_of_grid(SELECTION_GRID))
    run = curve_over(event.event, searched, relation)
    if run.delta:
        raise UnsupportedEventError(
            "repeat_and_select is not supported for a mechanism that has a delta of its own: its bound is proven for a "
            "Rényi divergence that always holds (Papernot, Steinke 2022)."
        )
    shape = inf if event.shape is None else event.shape
    selected = repeat_and_select_rdp(run.nats(), searched, event.mean, shape)
    return RdpCurve.from_nats(selected[np.searchsorted(searched, orders)])


@curve_by_type.register
def _(event: Decay, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    whole, halves = RdpCurve.zero(orders.size), RdpCurve.zero(orders.size)
    for step, count in scheduled_events(event):
        curve = curve_over(step, orders, relation)
        whole = whole + curve.times(count // 2)
        halves = halves + curve.times(count % 2)
    half = halves.values // 2 + halves.values % 2
    return whole + RdpCurve(np.where(halves.values == EXHAUSTED, EXHAUSTED, half))


@curve_by_type.register
def _(event: PoissonSampled, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    if event.takes_all:
        return curve_over(event.event, orders, relation)
    inner = strip_group(event.event)
    if not is_amplified(inner, relation):
        sampled = _replace_sampled_curve(event.sampling_probability, curve_over(inner, orders, relation), orders)
        mixture = sampled_mixture(event) if relation is NeighboringRelation.REPLACE_ONE else None
        if mixture is None:
            return sampled
        # Smaller for the mean of a micro-batch, which a replaced record moves no farther than an added one.
        return RdpCurve(np.minimum(curve_over(mixture, orders, relation).values, sampled.values))
    if isinstance(inner, EpsilonDelta) and inner.delta:
        epsilon, _ = sampled_epsilon_delta(event.sampling_probability, inner.epsilon, inner.delta)
        delta = exact(event.sampling_probability) * exact(inner.delta)
        return _rounded(lambda at: pure_dp_rdp(epsilon, at), orders, epsilon, delta)
    return _rounded(lambda at: rdp(event, at, relation), orders, worst_loss(event, relation))


def _replace_sampled_curve(q: float, taken: RdpCurve, orders: Floats) -> RdpCurve:
    """Compute the cost of a sample whose output may show its members.

    The coin for the record is the same on both neighbours: the mechanism fails with q times its own delta.
    """
    nats = np.where(orders <= HIGHEST, replace_sampled_rdp(q, taken.nats(), orders), taken.nats())
    # The inner curve is already rounded up; rounding it again could exceed it.
    values = np.minimum(RdpCurve.from_nats(nats).values, taken.values)
    return RdpCurve(values, ceil(exact(q) * taken.delta))


@curve_by_type.register
def _(event: SampledWithoutReplacement, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    if relation is not NeighboringRelation.REPLACE_ONE:
        raise UnsupportedEventError(
            f"sampled_without_replacement is not supported under {relation}: batches of a fixed size out of a known "
            "number of records are compared with another record in one's place. Declare replace_one."
        )
    if event.takes_all:
        return curve_over(event.event, orders, relation)
    q = event.sample_size / event.source_dataset_size
    z = gaussian_noise(_sum_of_batch(event, relation), relation)
    return _rounded(lambda at: without_replacement_gaussian_rdp(q, z, at), orders, inf)


@curve_by_type.register
def _(event: TruncatedPoissonSampled, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    inner, q = _sum_of_batch(event, relation), event.sampling_probability
    noises = gaussian_noise(inner, relation), gaussian_noise(inner, NeighboringRelation.REPLACE_ONE)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        shares = Shares.of(event.source_dataset_size, q, event.truncated_batch_size)
        return _rounded(lambda at: truncated_poisson_rdp(shares, q, noises, at), orders, inf)
    truncation = Truncation.of(event.source_dataset_size - 1, q, event.truncated_batch_size)
    special = relation is NeighboringRelation.REPLACE_SPECIAL
    return _rounded(lambda at: truncated_poisson_replaced_rdp(truncation, q, noises, at, special=special), orders, inf)


@curve_by_type.register
def _(event: SampledWithReplacement, orders: Floats, relation: NeighboringRelation) -> RdpCurve:
    if relation is not NeighboringRelation.REPLACE_ONE:
        raise UnsupportedEventError(
            f"sampled_with_replacement is not supported under {relation}: batches out of a known number of records are "
            "compared with another record in one's place. Declare replace_one."
        )
    size, places = event.source_dataset_size, event.sample_size
    z = gaussian_noise(_sum_of_batch(event, relation), relation)
    if size > 1 and most_occurrences(size, places, MAX_OCCURRENCES) == MAX_OCCURRENCES:
        raise UnsupportedEventError(
            f"sampled_with_replacement of {places} places out of {size} records is not supported under {relation}: a "
            f"record may be in {MAX_OCCURRENCES} places and more. Draw smaller batches, or without replacement."
        )
    failure = failure_with_replacement(size, places)
    return _rounded(lambda at: with_replacement_rdp(size, places, z, at), orders, inf, failure)


def _sum_of_batch(event: Batch, relation: NeighboringRelation) -> Gaussian | AdaptiveClipping:
    """Get the mechanism on a batch, if it releases one Gaussian sum."""
    inner = strip_group(event.event)
    if isinstance(inner, Gaussian | AdaptiveClipping):
        return inner
    # The bounds compare three Gaussians, and an adaptive query may shift them differently in each branch: several
    # releases of one batch form one longer vector only if all queries are fixed in advance.
    raise UnsupportedEventError(
        f"There is no bound for {type_name(inner)} on a batch of this kind under {relation}; a {type_name(event)} "
        "event may hold a gaussian or adaptive_clipping event, or the group_privacy of one of these. Several gaussian "
        "releases of one batch, none of which depends on another one's answer, are one gaussian event with the noise "
        "multiplier (sum of z^-2)^(-1/2)."
    )


def event_curves(events: Sequence[DpEvent], relation: NeighboringRelation, grid_version: int) -> list[RdpCurve]:
    """Compute the curve of each event; raises as `event_curve` does."""
    return [event_curve(event, relation, grid_version) for event in events]
