"""Costs of Laplace noise for local differential privacy."""

from dataclasses import dataclass
from math import inf

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import RdpCurve
from app.accounting.formulas.laplace_tails import bound_of_tail, epsilon_of_laplace, scale_of_tail
from app.accounting.formulas.mechanisms import laplace_rdp
from app.accounting.orders import GRID_VERSION, orders
from app.service.planning.assumptions import about_size


@dataclass(frozen=True, slots=True)
class LaplaceCost:
    """Laplace noise and the cost of its releases.

    Args:
        scale: b of the noise, in the data's unit.
        bound: of the absolute noise, kept with `probability`.
        noise_multiplier: scale over sensitivity, as in a `laplace` event.
        epsilon: of one release, pure.
        epsilon_basic: of all releases, pure: their sum.
        epsilon_rdp: of all releases at delta; None without a delta.
        optimal_order: of the Rényi bound; None without a delta or a bound.
    """

    scale: float
    bound: float
    probability: float
    noise_multiplier: float
    epsilon: float
    epsilon_basic: float
    epsilon_rdp: float | None
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Laplace noise, given by either its scale or a bound.

    Args:
        probability: that the absolute noise is below the bound, in (0, 1).
        l1_sensitivity: maximum L1 distance between the outputs of two inputs.
        scale: b, or None.
        bound: of the absolute noise, or None.
    """

    probability: float
    l1_sensitivity: float
    scale: float | None = None
    bound: float | None = None


def plan_laplace(noise: LaplaceNoise, releases: int, delta: float | None) -> LaplaceCost:
    """Compute the cost of releases about the same unit with Laplace noise.

    Args:
        noise: in every coordinate.
        releases: number of releases.
        delta: for the Rényi bound; None for the pure epsilon only.
    """
    if noise.scale is None:
        assert noise.bound is not None, "either the scale or the bound is given"
        scale, bound = scale_of_tail(noise.bound, noise.probability), noise.bound
    else:
        scale, bound = noise.scale, bound_of_tail(noise.scale, noise.probability)
    epsilon = epsilon_of_laplace(scale, noise.l1_sensitivity)
    basic = epsilon * releases
    by_rdp = order = None
    if delta is not None:
        grid = orders(GRID_VERSION)
        curve = RdpCurve.from_nats(laplace_rdp(scale / noise.l1_sensitivity, grid)).times(releases)
        found = epsilon_of_curve(grid, curve, delta)
        by_rdp, order = (found.epsilon, found.order) if found.epsilon < inf else (inf, None)
    return LaplaceCost(
        scale=scale,
        bound=bound,
        probability=noise.probability,
        noise_multiplier=scale / noise.l1_sensitivity,
        epsilon=epsilon,
        epsilon_basic=basic,
        epsilon_rdp=by_rdp,
        optimal_order=order,
        warnings=tuple(about_size(min(basic, inf if by_rdp is None else by_rdp))),
    )
