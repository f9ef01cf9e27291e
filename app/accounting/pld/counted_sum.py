"""The tilted sum of counted losses, by few frequencies, and the smallest epsilon for its delta."""

from dataclasses import dataclass
from math import exp, expm1, inf, log, log1p
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.pld.frequencies import ROUNDING, Complexes

CLOSE: Final = 5e-3
"""Change of ln delta over which a chord is drawn: it is above delta, which is convex in e^epsilon, by 3e-6."""

MAX_TRIALS: Final = 100

LOSSES, LOSSES_EACH = 2.0**-40, 2.0**-48
"""Errors allowed for the place of an epsilon between two losses, in the distance of both, and for epsilon."""


@dataclass(frozen=True, slots=True, eq=False)
class CountedSum:
    """The composition of some counts.

    Args:
        tilt: t.
        spacing: nats.
        size: places in a period.
        numbers: (k,) numbers of the frequencies.
        amplitudes: (k,) frequencies times those of the weight at epsilon 0.
        error: of their sum at any epsilon.
        log_moment: K(t).
        infinite: probability of an infinite loss.
        loss_error: nats by which the sum may be larger.
        rounding: error of the logarithm of delta, but for `error`.
        most: largest finite loss, in places.
    """

    tilt: float
    spacing: float
    size: int
    numbers: NDArray[np.int64]
    amplitudes: Complexes
    error: float
    log_moment: float
    infinite: float
    loss_error: float
    rounding: float
    most: float

    def left_of(self, goal: float) -> float:
        """Compute the logarithm of what infinite losses leave of a delta, rounded down."""
        share = self.infinite * exp(-goal)
        return goal + log1p(-share) - 4 * ROUNDING * (1 + abs(goal)) if share < 1 else -inf

    def log_delta_at(self, place: int) -> float:
        """Compute an upper bound on ln delta at a multiple of the spacing, without that of infinite losses."""
        if place >= self.most:
            return -inf
        expected = self._expected(place) + self.error
        if not 0 < expected < inf:
            return 0.0
        exponent = self.tilt * self.spacing * place
        return self.log_moment - exponent + log(expected) + self.rounding + 4 * ROUNDING * exponent

    def share_of_errors(self, epsilon: float) -> float:
        """Compute the share of errors in delta at epsilon."""
        expected = self._expected(int(epsilon / self.spacing))
        return self.error / expected if expected > 0 else inf

    def _expected(self, place: int) -> float:
        angles = np.multiply(self.numbers * (place % self.size) % self.size, 2 * np.pi / self.size)
        return float(self.amplitudes.real @ np.cos(angles) - self.amplitudes.imag @ np.sin(angles))

    def root(self, goal: float, near: float) -> float:
        """Find about the smallest loss, in nats, at which ln delta is proven to be at most `goal`.

        Delta is looked at on the lattice alone: between two places it is a line in e^epsilon. The loss is infinite if
        none is found.

        Args:
            goal: ln delta.
            near: about the place.
        """
        if goal == -inf:
            return inf
        spacing, slope = self.spacing, -self.tilt * self.spacing
        beyond = max(1.0, -CLOSE / 4 / slope)
        low, high = (-1, inf), (max(int(self.most) + 1, 1), -inf)
        at = min(max(int(near), 0), high[0] - 1), 0.0
        before: tuple[int, float] | None = None
        for _ in range(MAX_TRIALS):
            at = at[0], self.log_delta_at(at[0])
            if at[1] > goal:
                low = at
            elif at[0]:
                high = at
            else:
                return 0.0 if exp(goal) - exp(at[1]) >= self.loss_error else spacing
            if low[0] >= 0 and (high[0] - low[0] == 1 or low[1] - high[1] <= CLOSE):
                return _chord(low[0] * spacing, high[0] * spacing, low[1] - goal, high[1] - goal)
            if before and at[1] > -inf and (at[1] - before[1]) * (at[0] - before[0]) < 0:
                slope = (at[1] - before[1]) / (at[0] - before[0])
            before = at if at[1] > -inf else None
            # A little beyond where the goal seems to be, so that two places soon enclose it.
            step = (goal - at[1]) / slope + (beyond if at[1] > goal else -beyond)
            place = int(min(max(at[0] + step, low[0] + 1), high[0] - 1))
            is_off = low[0] >= 0 and abs(step) > high[0] - low[0]
            at = ((low[0] + high[0]) // 2 if is_off else place), 0.0
        return inf


def _chord(low: float, high: float, low_value: float, high_value: float) -> float:
    """Find where a chord of delta in e^epsilon, of which two logarithms over the goal are known, reaches the goal."""
    share = -expm1(high_value) / (exp(low_value) - exp(high_value))
    share = max(share * (1 - LOSSES) - LOSSES, 0.0)
    return max(high + log1p(expm1(low - high) * share), 0.0)
