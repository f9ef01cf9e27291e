"""Sum weight ((1 + u)^a - 1 - a u) over nodes at many orders a.

With w = ln(1 + u), b = a - 1 and f(t) = exp(t) - 1 - t >= 0, each term is weight (1 + u) (f(b w) + b f(-w)): nothing
cancels at any order and any u. The second part is b times a number that does not depend on the order. For the first,
orders are processed in blocks of similar b. Where b |w| stays small in a block, f(b w) is a short polynomial in b, so
these nodes are summed once, as moments; at all others exp(b w), 1 and b w differ enough to be summed separately, with
one exponential per node and order.

An order's result does not depend on the other orders, to the last bit: blocks have fixed edges, and every sum over
nodes has the same terms in the same sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.formulas.numerics import CHUNK

RADIUS: Final = 3.2
"""Nodes with b |w| up to this at a block's upper edge are summed as moments. At the others b |w| is above
RADIUS / 8 = 0.4 in the whole block, where exp(t), 1 and t are at most 18 times f(t)."""

EDGES: Final = np.array(
    [*(0.5 / 8**k for k in range(7, -1, -1)), 4, 16, 64, 128, 256, 384, *(512 + 256 * k for k in range(15))]
)
"""Edges of the blocks of b: up to 4 as few as RADIUS allows, closer above, so that few nodes are summed in vain.
Below the lowest one, 2e-7, all nodes are moments: for noise multipliers from 1e-3 on, w stays below 2e6 there."""

POWERS: Final = np.arange(1.0, 31.0)[:, np.newaxis]
"""The powers of the moments, 1 to 30: RADIUS^31 / 31! is 6e-19 of f(-RADIUS) and less of every other f(t)."""

SIGNS: Final = (-1) ** POWERS[1:, 0]
"""The powers 2 to 30 of b = -1."""

EXP_RANGE: Final = 600.0
"""exp of this, times the number of nodes, is finite."""

EXP_FLOOR: Final = -700.0
"""Smaller exponents are replaced by this (1e-304): the processor takes ten times as long if exp underflows."""

LOG_NEGLIGIBLE: Final = 45.0
"""Difference of logarithms beyond which the smaller term is ignored: exp(-45) is 3e-20."""

LEAST: Final = 1e-290
"""Nats; smaller divergences (q near 1e-145 and less) are rounded up to this, since intermediate floats underflow."""


class Bend(NamedTuple):
    """Where the sum over nodes ends, since from there on a moment is known in closed form.

    Args:
        place: x of the bend.
        log_ratio: ln(1 + u) there.
    """

    place: float
    log_ratio: float


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of a quadrature, sorted by w = ln(1 + u) and so by x.

    Args:
        x: (n_nodes,) abscissas.
        table: (5, n_nodes); w is row 1 + row 2 and ln(weight (1 + u)) is row 0 + row 3, rows 2 and 3 being the rounding
            errors of rows 1 and 0; row 4 is weight (1 + u).
    """

    x: Floats
    table: Floats


@dataclass(frozen=True, slots=True)
class Block:
    """The sorted orders from index `start` to `stop`, and their upper edge."""

    start: int
    stop: int
    top: float

    @property
    def highest(self) -> float:
        """The rightmost peak of any term of any order up to the upper edge."""
        return max(2.0, self.top + 1)


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """Precomputed numbers that depend on the orders only.

    Args:
        a: (n_orders,) orders, sorted.
        b: (n_orders,) a - 1.
        places: (n_orders,) index of each given order among the sorted ones.
        blocks: nonempty blocks, ascending.
        design: (n_orders, 4) factors 1, b, b, 1 of the rows 0 to 3 of a table of nodes.
        powers: (n_orders, 31) the powers 0 to 30 of b.
    """

    a: Floats
    b: Floats
    places: NDArray[np.intp]
    blocks: tuple[Block, ...]
    design: Floats
    powers: Floats


@lru_cache(maxsize=16)
def order_plan(orders: bytes) -> OrderPlan:
    """Build and cache the plan of float64 orders in (1, 4096], given as bytes.

    The last 16 plans are cached, about 0.4 MB each for 1,387 orders.
    """
    given = np.frombuffer(orders)
    if not bool(((given > 1) & (given <= EDGES[-1])).all()):
        raise ValueError(f"Orders of a sampled Gaussian lie above 1 and are at most {EDGES[-1]:g}.")
    sequence = np.argsort(given, kind="stable")
    a = given[sequence]
    b = a - 1
    stops = b.searchsorted(EDGES, side="right").tolist()
    return OrderPlan(
        a=a,
        b=b,
        places=np.argsort(sequence, kind="stable"),
        blocks=tuple(
            Block(start, stop, top)
            for start, stop, top in zip([0, *stops], stops, EDGES.tolist(), strict=False)
            if start < stop
        ),
        design=np.stack([np.ones_like(b), b, b, np.ones_like(b)], axis=1),
        powers=b[:, np.newaxis] ** np.arange(len(POWERS) + 1.0),
    )


def divergences(
    plan: OrderPlan, bend: Bend, spread: float, log_right: Floats, nodes_until: Callable[[float], Nodes]
) -> Floats:
    """Compute ln E[(1 + u)^a] / (a - 1) for every order, at least LEAST, from both sides of the bend.

    The lowest orders, whose peaks end before the bend, are summed over all nodes. `log_right` is
    ln E[(1 + u)^a - 1 - a u; x > bend] at the other ones, to which the sum up to the bend is added. That sum is at most
    E[(1 + u)^a; x < bend] <= (1 + u(bend))^(a - 1) E[1 + u], which is log-linear in the order; E[(1 + u)^a; x > bend]
    is log-convex and at most 1 at a = 1. So the orders at which the sum matters come first.

    Args:
        plan: of the orders.
        bend: where the sum ends.
        spread: distance from the highest peak of an order beyond which nodes are ignored.
        log_right: (n_right,), of the last n_right sorted orders, those at least `spread` above the bend.
        nodes_until: builds the nodes up to an x.

    Returns:
        (n_orders,) nats, in the given sequence of the orders.
    """
    near = plan.a.size - log_right.size
    mixed = near + int(np.count_nonzero(log_right <= plan.b[near:] * bend.log_ratio + LOG_NEGLIGIBLE))
    log_moments = np.empty_like(plan.a)
    log_moments[mixed:] = log_right[mixed - near :]
    if mixed:
        highest = max((block.highest for block in plan.blocks if block.start < near), default=0.0)
        nodes = nodes_until(max(highest + spread, bend.place if mixed > near else 0.0))
        sums, log_scales = excess(nodes, plan, near, mixed, bend.place, spread)
        log_right = log_right[: mixed - near]
        common = np.maximum(log_scales[near:], log_right - EXP_RANGE)
        sums[near:] = sums[near:] * np.exp(log_scales[near:] - common) + np.exp(log_right - common)
        log_scales[near:] = common
        log_moments[:mixed] = _log1p_scaled(sums, log_scales)
    found: Floats = np.maximum(log_moments / plan.b, LEAST)[plan.places]
    return found


def _log1p_scaled(sums: Floats, log_scales: Floats) -> Floats:
    """Compute ln(1 + sum exp(log scale)) without overflow."""
    result: Floats = np.log1p(sums)
    large = log_scales > 0
    if large.any():
        result[large] = log_scales[large] + np.log(sums[large] + np.exp(-log_scales[large]))
    return result


def excess(nodes: Nodes, plan: OrderPlan, near: int, stop: int, bend: float, spread: float) -> tuple[Floats, Floats]:
    """Sum weight ((1 + u)^a - 1 - a u) over nodes for the `stop` lowest orders.

    The `near` lowest use all nodes, the others those below `bend`. Nodes further than `spread` beyond the highest peak
    of a block are ignored.

    Returns:
        Two (stop,) arrays: the sums, each times exp(-its log scale), and the log scales, which are 0 unless a term
        exceeds exp(EXP_RANGE). Relative error about 1e-15.
    """
    w, weight = nodes.table[1], nodes.table[4]
    blocks = [block for block in plan.blocks if block.start < stop]
    edges = w.searchsorted([(-RADIUS / block.top, RADIUS / block.top) for block in blocks]).tolist()
    reaches = nodes.x.searchsorted([2 + spread, bend, *(block.highest + spread for block in blocks)]).tolist()
    widest = max(RADIUS / blocks[0].top, 1.0)
    low, high = w.searchsorted((-widest, widest)).tolist()
    powers = np.multiply.accumulate(w[low:high] / POWERS, axis=0)[1:]
    sums, log_scales = np.empty(stop), np.zeros(stop)
    coefficients = np.empty(len(POWERS) + 1)
    for first, last, limit in ((0, near, w.size), (near, stop, reaches[1])):
        if first == last:
            continue
        constant = _order_free(w, weight, powers, low, min(reaches[0], limit))
        for block, (left, right), reach in zip(blocks, edges, reaches[2:], strict=True):
            here = slice(max(block.start, first), min(block.stop, last))
            if here.start >= here.stop:
                continue
            end = min(reach, limit)
            begin = min(right, end)
            far = np.concatenate([nodes.table[:, :left], nodes.table[:, begin:end]], axis=1)
            coefficients[0] = -far[4].sum()
            coefficients[1] = constant - far[4] @ far[1]
            np.matmul(powers[:, left - low : begin - low], weight[left:begin], out=coefficients[2:])
            np.einsum("ij,j->i", plan.powers[here], coefficients, out=sums[here])
            if far.size:
                _add_far(far[:4], plan.design[here], sums[here], log_scales[here])
    return sums, log_scales


def _order_free(w: Floats, weight: Floats, powers: Floats, low: int, stop: int) -> float:
    """Sum weight (1 + u) f(-w): from the powers where |w| is at most 1, else directly."""
    left, right = w[:stop].searchsorted((-1.0, 1.0)).tolist()
    total = float(SIGNS @ (powers[:, left - low : right - low] @ weight[left:right]))
    for part in (slice(left), slice(right, stop)):
        total += float((np.expm1(-w[part]) + w[part]) @ weight[part])
    return total


def _add_far(far: Floats, design: Floats, sums: Floats, log_scales: Floats) -> None:
    """Add the nodes outside the moments to a block's sums."""
    at_once = max(2, CHUNK // far.shape[1])
    workspace = np.empty((min(at_once, len(design)), far.shape[1]))
    for start in range(0, len(design), at_once):
        part = slice(start, start + at_once)
        exponent = _exponents(design[part], far, workspace)
        # An exponent is linear in the order: its extremes are at the first and last order.
        ends = exponent[:: max(1, len(exponent) - 1)]
        if ends.max() > EXP_RANGE:
            largest = exponent.max(axis=1)
            log_scales[part] = np.where(largest > EXP_RANGE, largest, 0.0)
            exponent -= log_scales[part, np.newaxis]
            sums[part] *= np.exp(-log_scales[part])
        if ends.min() < EXP_FLOOR:
            np.maximum(exponent, EXP_FLOOR, out=exponent)
        sums[part] += np.exp(exponent, out=exponent).sum(axis=1)


def _exponents(design: Floats, far: Floats, workspace: Floats) -> Floats:
    """Compute b w + ln(weight (1 + u)), shape (n_orders, n_nodes).

    The product may be 1e4 times the sum: a matrix product adds it without rounding it first (fused multiply-add).
    """
    if 1 in (len(design), far.shape[1]):
        # BLAS multiplies vectors by another routine, which adds in another sequence.
        doubled: Floats = np.tile(design, (2, 1)) @ np.tile(far, (1, 2))
        return doubled[: len(design), : far.shape[1]]
    return np.matmul(design, far, out=workspace[: len(design)])
