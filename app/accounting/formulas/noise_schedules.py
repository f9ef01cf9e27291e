"""Schedules of decreasing noise, reduced to few noise multipliers that never undercharge.

Let A(T) be the moment of order a of a (sampled) Gaussian at T = 1 / z^2. It is E[phi(M_T)], phi(m) = (1 - q + q m)^a,
with the geometric Brownian motion M_T = exp(B_T - T / 2), whose generator is G = (m^2 / 2) d^2/dm^2. So A' = E[G phi]
and A'' = E[G^2 phi], and at every m, phi G^2 phi >= (G phi)^2: with c = 1 - q and n = q m the difference is
2 c^2 + 4 (a - 1) c n times a positive factor. By the Cauchy-Schwarz inequality A A'' >= A'^2: ln A is convex in T, and
it increases. Along each schedule 1 / z^2 is convex in the step t, and so is the divergence R of a step. So the straight
line between two steps is never below it.
"""

from math import log1p
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.errors import InvalidEventError

DecayMode = Literal["time", "step", "exp"]

MIN_NOISE_MULTIPLIER: Final = 1e-3
"""No formula here supports less noise."""

EXACT_STEPS: Final = 1000
"""Up to this many steps, each is charged individually."""

KNOTS: Final = 512
"""Maximum number of steps charged in a longer schedule; straight lines interpolate the others."""

DENSE: Final = 1 << 14
"""Points that the knots are interpolated from."""


def scheduled_noise(mode: DecayMode, z0: float, rate: float, step: NDArray[np.int64] | Floats) -> Floats:
    """Compute the (n,) noise multipliers of (n,) steps t >= 0 of a schedule, 0 where they underflow.

    With k = `rate`, at least 0, mode "time" is z0 / (1 + k t), "step" is z0 (1 - k)^t, k < 1, and "exp" is z0 exp(-k t)
    (MindArmour's names).
    """
    t = np.asarray(step, dtype=np.float64)
    if mode == "time":
        return z0 / (1 + rate * t)
    log_rate = -rate if mode == "exp" else log1p(-rate)
    return z0 * np.exp(log_rate * t)


def segments(mode: DecayMode, z0: float, rate: float, first_step: int, steps: int) -> list[tuple[float, int]]:
    """Reduce a schedule to noise multipliers with counts of half steps.

    Up to 1000 steps are charged individually, two halves a step. Of more, up to 512 knots are charged by the trapezoid
    rule (the module has the proof): a knot with l steps to its predecessor and m to its successor counts l + m halves,
    the first and the last count one more than their only distance. The halves add up to 2 `steps`. Since the divergence
    increases along the schedule, the total is too high by at most the sum over neighbouring knots of (distance - 1) / 2
    times the difference of their divergences. Measured over schedules of DP-SGD: a share of at most 3e-4, but 1/2 at an
    order that only the last step or two take past the bend of the curve.
    """
    knots = _knots(mode, z0, rate, first_step, steps, exact=EXACT_STEPS, most=KNOTS)
    distances = np.diff(knots)
    halves = np.concatenate([[1], distances]) + np.concatenate([distances, [1]])
    return _merged(scheduled_noise(mode, z0, rate, knots), halves)


def least_noise_segments(
    mode: DecayMode, z0: float, rate: float, first_step: int, steps: int, *, exact: int = EXACT_STEPS, most: int = KNOTS
) -> list[tuple[float, int]]:
    """Reduce a schedule to few noise multipliers with counts of steps, none of which has more noise.

    Of more than `exact` steps, each has the noise of the next of up to `most` knots.
    """
    knots = _knots(mode, z0, rate, first_step, steps, exact=exact, most=most)
    return _merged(scheduled_noise(mode, z0, rate, knots), np.diff(knots, prepend=first_step - 1))


def check_noise(mode: DecayMode, z0: float, rate: float, first_step: int, last_step: int) -> None:
    """Raise InvalidEventError if noise becomes too small, naming the first such step."""

    def falls_below(step: int) -> bool:
        return bool(scheduled_noise(mode, z0, rate, np.array([step]))[0] < MIN_NOISE_MULTIPLIER)

    if not falls_below(last_step):
        return
    low, high = first_step - 1, last_step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if falls_below(middle) else (middle, high)
    raise InvalidEventError(
        f"The noise multiplier falls below {MIN_NOISE_MULTIPLIER:g} at step {high}, but the schedule goes on to step "
        f"{last_step}: end it before, or let the noise shrink more slowly."
    )


def _knots(
    mode: DecayMode, z0: float, rate: float, first_step: int, steps: int, *, exact: int, most: int
) -> NDArray[np.int64]:
    """Choose the steps between which straight lines bound the divergence: all of up to `exact`, else `most`.

    The lines' excess is minimal if the density of knots is the cube root of the second derivative: that of 1 / z^2 for
    "step" and "exp", none in particular for "time". Half of the knots follow it, half are spaced evenly.

    Raises:
        InvalidEventError: the noise becomes too small.
    """
    last_step = first_step + steps - 1
    check_noise(mode, z0, rate, first_step, last_step)
    if steps <= exact:
        return np.arange(first_step, last_step + 1)
    t = np.linspace(first_step, last_step, DENSE)
    bend = scheduled_noise(mode, z0, rate, t) ** (-2 / 3)
    span = bend[-1] - bend[0]
    place = (t - first_step) / (last_step - first_step)
    if span > 0:
        place = (place + (bend - bend[0]) / span) / 2
    return np.unique(np.rint(np.interp(np.linspace(0, 1, most), place, t)).astype(np.int64))


def _merged(noise: Floats, counts: NDArray[np.int64]) -> list[tuple[float, int]]:
    """Add up the (n,) counts of equal (n,) noise multipliers, the largest noise first."""
    different, first_of_equals = np.unique(-noise, return_index=True)
    totals = np.add.reduceat(counts, first_of_equals)
    return [(-float(z), int(count)) for z, count in zip(different, totals, strict=True)]
