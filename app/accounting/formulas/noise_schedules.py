"""Noise that shrinks from step to step: a schedule as few noise multipliers with counts, never below the truth.

Let A(T) be the moment of order a of a (sampled) Gaussian at T = 1 / z^2. It is E[phi(M_T)], phi(m) = (1 - q + q m)^a,
with the geometric Brownian motion M_T = exp(B_T - T / 2), whose generator is G = (m^2 / 2) d^2/dm^2. So A' = E[G phi]
and A'' = E[G^2 phi], and at every m, phi G^2 phi >= (G phi)^2: with c = 1 - q and n = q m the difference is
2 c^2 + 4 (a - 1) c n times something positive. By Cauchy and Schwarz A A'' >= A'^2: ln A is convex in T, and it grows.
Along each schedule 1 / z^2 is convex in the step t. Hence so is the divergence R of the step, and between two steps
the straight line from the one to the other is never below it.
"""

from math import log1p
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.accounting.errors import InvalidEventError

DecayMode = Literal["time", "step", "exp"]

MIN_NOISE_MULTIPLIER: Final = 1e-3
"""Below this no formula here is meant to work."""

EXACT_STEPS: Final = 1000
"""Up to so many steps each is charged by itself."""

KNOTS: Final = 512
"""At most so many of more steps are; straight lines stand for the others."""

DENSE: Final = 1 << 14
"""Points from which the places of the knots are interpolated."""


def decayed(
    mode: DecayMode, z0: float, rate: float, step: NDArray[np.int64] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the noise multipliers of steps of a schedule.

    Args:
        mode: "time" is z0 / (1 + k t), "step" is z0 (1 - k)^t and "exp" is z0 exp(-k t) at step t.
        z0: noise multiplier of step 0, above 0.
        rate: k, at least 0, below 1 in mode "step".
        step: (n,) numbers t of steps, at least 0.

    Returns:
        (n,) noise multipliers, not increasing in t; 0 where they are below every float.

    Source:
        MindArmour's noise mechanisms, whose decay policies have these names.
    """
    t = np.asarray(step, dtype=np.float64)
    if mode == "time":
        return z0 / (1 + rate * t)
    log_rate = -rate if mode == "exp" else log1p(-rate)
    return z0 * np.exp(log_rate * t)


def segments(mode: DecayMode, z0: float, rate: float, first_step: int, steps: int) -> list[tuple[float, int]]:
    """Return a schedule as noise multipliers, each with how many half steps it is charged for.

    Up to 1000 steps are charged each by itself, two halves a step. Of more, at most 512 knots are, and the straight
    lines between them add up to whole numbers of halves: a knot with l steps to the one before it and m to the one
    after it counts l + m halves, the first and the last count one more than their only distance. The halves add up to
    2 `steps`. Since the divergence grows along the schedule, the sum of the charges is too high by at most the sum
    over neighbouring knots of (distance - 1) / 2 times the difference of their divergences. Measured over
    schedules of DP-SGD: 3e-4 of itself or less; half of it at an order that only the last step or two take past the
    bend of the curve.

    Args:
        mode: as for `decayed`.
        z0: noise multiplier of step 0, above 0.
        rate: k, at least 0, below 1 in mode "step".
        first_step: number of the first step, at least 0.
        steps: how many steps, at least 1.

    Returns:
        Noise multipliers, decreasing, and their counts in halves, which are at least 1.

    Raises:
        InvalidEventError: the noise multiplier falls below 1e-3 on the way.

    Source:
        The module's proof, for a Gaussian or a Poisson-sampled Gaussian; the trapezoid rule.
    """
    last_step = first_step + steps - 1
    check_noise(mode, z0, rate, first_step, last_step)
    if steps <= EXACT_STEPS:
        knots = np.arange(first_step, last_step + 1)
        halves = np.full(steps, 2)
    else:
        knots = _knots(mode, z0, rate, first_step, last_step)
        distances = np.diff(knots)
        halves = np.concatenate([[1], distances]) + np.concatenate([distances, [1]])
    noise, first_of_equals = np.unique(-decayed(mode, z0, rate, knots), return_index=True)
    counts = np.add.reduceat(halves, first_of_equals)
    return [(-float(z), int(count)) for z, count in zip(noise, counts, strict=True)]


def check_noise(mode: DecayMode, z0: float, rate: float, first_step: int, last_step: int) -> None:
    """Refuse a schedule that ends with hardly any noise; name the step from which on that is so.

    Args:
        mode: as for `decayed`.
        z0: noise multiplier of step 0, above 0.
        rate: k, at least 0, below 1 in mode "step".
        first_step: number of the first step, at least 0.
        last_step: number of the last one.

    Raises:
        InvalidEventError: the noise multiplier falls below 1e-3 on the way.
    """

    def falls_below(step: int) -> bool:
        return bool(decayed(mode, z0, rate, np.array([step]))[0] < MIN_NOISE_MULTIPLIER)

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


def _knots(mode: DecayMode, z0: float, rate: float, first_step: int, last_step: int) -> NDArray[np.int64]:
    """Return steps between which straight lines stand for the divergence, more where it bends.

    The lines' excess is least where knots are as dense as the cube root of the second derivative: that of 1 / z^2
    itself for "step" and "exp", none in particular for "time". Half of the knots are placed so, half evenly.
    """
    t = np.linspace(first_step, last_step, DENSE)
    bend = decayed(mode, z0, rate, t) ** (-2 / 3)
    span = bend[-1] - bend[0]
    place = (t - first_step) / (last_step - first_step)
    if span > 0:
        place = (place + (bend - bend[0]) / span) / 2
    return np.unique(np.rint(np.interp(np.linspace(0, 1, KNOTS), place, t)).astype(np.int64))
