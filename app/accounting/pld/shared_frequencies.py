"""Frequencies that the compositions of the same pairs share whose counts are similar.

The logarithm of a frequency of a composition is the sum of those of its parts, each times its count. So the frequencies
of each part on one lattice, with one tilt, serve all counts: an epsilon takes a product with a matrix, exponentials
and a search. Every result is an upper bound as those of `app.accounting.pld.composition` are, since any tilt gives one.
It is tight near the counts that lattice, tilt and period were chosen for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, log
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import Floats
from app.accounting.pld.composition import (
    largest_exponent,
    places_in_period,
    shares_of_frequencies,
    tilted,
    tilted_masses,
    tilted_moments,
    weight_frequencies,
)
from app.accounting.pld.connect_the_dots import Dots
from app.accounting.pld.counted_sum import LOSSES, LOSSES_EACH, CountedSum
from app.accounting.pld.frequencies import NEGLIGIBLE, ROUNDING, Complexes, frequency_rows
from app.accounting.pld.kept_frequencies import keep_frequencies, weight_sizes
from app.accounting.pld.periods import STEEPER, period_adding
from app.accounting.pricing_effort import use_effort

LEFT_OUT: Final = 0.4
"""Share of what errors may add to delta, TRUSTED, that the frequencies may have that are left out."""

TRUSTED: Final = 1e-4
"""Share of delta by which errors may raise it, times epsilon and tilt where those are less than 1."""

SPARE: Final = log(4)
"""Factor, as a logarithm, by which a period is to add less to delta where it is chosen than where it is trusted."""

FEWEST_PLACES: Final = 64
"""Minimum places in a period."""

SMALLEST: Final = 1e-6
"""Tilt times epsilon that is looked at, at least."""

LONGEST: Final = 4.0
"""Maximum length of a period over that of `places_in_period`."""

MOVED: Final = 1e-4
"""Share of ln delta by which the lattice may change it."""

EVALUATED, EVALUATED_EACH = 150, 0.5
"""Microseconds for an epsilon, and for each frequency."""


class Corner(NamedTuple):
    """Counts between which frequencies are to serve, with about their epsilon.

    Args:
        counts: (n,) repetitions.
        epsilon: nats.
    """

    counts: Floats
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class SharedFrequencies:
    """Frequencies of n tilted losses, ready for the epsilon of all counts that are not below the lowest.

    Args:
        tilt: t.
        moments: (2, n) K(t) and K'(t) of each.
        steeper: (s, n) K(s) of each at each of some larger tilts.
        infinite: (n,) probabilities of an infinite loss.
        loss_errors: (n,) nats by which a loss may be larger.
        largest: (n,) largest finite losses, in places.
        row_errors: (n,) errors of each frequency.
        log_sizes: (n,) largest absolute values of logarithms.
        reach: largest exponent of the tilt.
        spacing: nats.
        size: places in a period.
        numbers: (k,) numbers of the frequencies.
        parts: (n, 3 k) real and imaginary parts of their logarithms, and logarithms of 1 + relative error.
        weights: (k,) conjugates of those of the weight at epsilon 0, as often as they are in the sum.
        sizes: (k,) bounds on their absolute values.
        left_out: bound on the sum of all others at the lowest counts.
    """

    tilt: float
    moments: Floats
    steeper: Floats
    infinite: Floats
    loss_errors: Floats
    largest: Floats
    row_errors: Floats
    log_sizes: Floats
    reach: float
    spacing: float
    size: int
    numbers: NDArray[np.int64]
    parts: Floats
    weights: Complexes
    sizes: Floats
    left_out: float

    @classmethod
    def of(cls, dots: Dots, tilt: float, corners: Sequence[Corner], goal: float) -> Self | None:
        """Compute the frequencies that count at some counts, the first of which are the lowest, for ln delta `goal`.

        None if the period has too many places; then a larger spacing is needed.

        Raises:
            TooManyFrequenciesError: too many are needed to share them.
        """
        moments = np.stack(tilted_moments(dots, tilt)[:2])
        steeper = np.stack([tilted_moments(dots, each)[0] for each in tilt * STEEPER])
        lowest, highest = corners[0].counts, corners[-1].counts
        trusted = TRUSTED * min(1.0, max(tilt * corners[0].epsilon, SMALLEST))
        values = [goal + tilt * corner.epsilon - float(corner.counts @ moments[0]) for corner in corners]
        reach, error = largest_exponent(dots, tilt), ROUNDING * (64 + largest_exponent(dots, tilt))
        masses, _ = tilted_masses(dots, tilt)
        masses /= masses.sum(axis=1, keepdims=True)
        longest = LONGEST * places_in_period(tilted(dots, highest, tilt), dots.spacing)
        enough = max(
            period_adding(tilt, steeper @ each.counts, each.epsilon, goal + log(trusted) - SPARE) for each in corners
        )
        size = ceil(min(max(enough / dots.spacing, FEWEST_PLACES), longest))
        found = frequency_rows(masses, lowest, dots.places, size, error)
        if found is None:
            return None
        size, first, rows = found
        sizes = weight_sizes(dots.spacing, tilt, size, first)
        # Of the frequencies beyond, none has a larger weight than the first, which is alone and not conjugate.
        beyond = float(sizes[0]) * size * exp(NEGLIGIBLE)
        room = log(LEFT_OUT * trusted) + min(values)
        kept = keep_frequencies(rows, lowest, sizes, min(room, log(LEFT_OUT * trusted * float(sizes[0]))), error)
        weights, sizes = weight_frequencies(0.0, dots.spacing, tilt, size, kept.numbers)
        shares = shares_of_frequencies(kept.numbers, size)
        return cls(
            tilt=tilt,
            moments=moments,
            steeper=steeper,
            infinite=dots.infinite,
            loss_errors=dots.loss_errors,
            largest=dots.places[dots.last].astype(np.float64),
            row_errors=kept.row_errors,
            log_sizes=np.hypot(kept.logs.real, kept.logs.imag).max(axis=1),
            reach=reach,
            spacing=dots.spacing,
            size=size,
            numbers=kept.numbers,
            parts=np.concatenate([kept.logs.real, kept.logs.imag, kept.growth], axis=1),
            weights=weights.conj() * shares,
            sizes=sizes * shares,
            left_out=(kept.left_out + 2 * beyond) * (1 + LOSSES),
        )

    @property
    def numbers_kept(self) -> int:
        """Count the numbers that these frequencies take: per one its own, its weight's, and those of its parts."""
        return 4 * self.numbers.size + self.parts.size

    def epsilon(self, counts: Floats, goal: float, near: float, proven: float = 0.0) -> float:
        """Find about the smallest epsilon from `proven` on at which ln delta is proven to be at most `goal`.

        Args:
            counts: (n,) whole repetitions, none below the lowest.
            goal: ln delta.
            near: about the epsilon.
            proven: an epsilon that is returned if it is large enough.

        Returns:
            Infinity if these frequencies do not suit these counts.
        """
        use_effort(EVALUATED + EVALUATED_EACH * self.numbers.size)
        total = self.total(counts)
        left = total.left_of(goal)
        place = int((proven * (1 - LOSSES_EACH) - total.loss_error) / self.spacing)
        if place > 0 and total.log_delta_at(place) <= left:
            return proven
        found = total.root(left, near / self.spacing)
        if found == inf or not self._suits(counts, goal, found, total):
            return inf
        return (found + total.loss_error) * (1 + LOSSES_EACH) if found else 0.0

    def root(self, counts: Floats, goal: float, near: float) -> float:
        """Find an epsilon as `epsilon` does, even if these frequencies do not suit these counts."""
        total = self.total(counts)
        return total.root(total.left_of(goal), near / self.spacing)

    def _suits(self, counts: Floats, goal: float, epsilon: float, total: CountedSum) -> bool:
        """Check that errors hardly raise an epsilon that was found, and that lattice and period suit it."""
        if not epsilon:
            return True
        tilt, spacing = self.tilt, self.spacing
        trusted = TRUSTED * min(1.0, tilt * epsilon)
        moved = float(counts.sum()) * tilt * (tilt + 1) * spacing**2 / 12
        return (
            period_adding(tilt, self.steeper @ counts, epsilon, goal + log(trusted)) <= self.size * spacing
            and moved <= MOVED * max(1.0, tilt * epsilon)
            and total.share_of_errors(epsilon) <= trusted
        )

    def total(self, counts: Floats) -> CountedSum:
        """Compose counts of the parts.

        |x^n - y^n| <= (|x| + e)^n - |x|^n for |x - y| <= e.
        """
        k = self.numbers.size
        logs = counts @ self.parts
        rounding = ROUNDING * (64 + k + 4 * float(counts @ self.log_sizes))
        with np.errstate(over="ignore", invalid="ignore"):  # of too many repetitions nothing is known
            absolute = np.exp(logs[:k])
            errors = np.expm1(logs[2 * k :]) * (1 + rounding) + rounding
            error = float((absolute * self.sizes) @ errors)
        slack = exp(min(float(counts @ self.row_errors), 1.0))
        return CountedSum(
            tilt=self.tilt,
            spacing=self.spacing,
            size=self.size,
            numbers=self.numbers,
            amplitudes=absolute * np.exp(1j * logs[k : 2 * k]) * self.weights,
            error=error + self.left_out * slack if slack < exp(1.0) else inf,
            log_moment=float(counts @ self.moments[0]),
            infinite=float(counts @ self.infinite),
            loss_error=float(counts @ self.loss_errors),
            rounding=ROUNDING * (float(counts.sum()) * (self.reach + 64) + 64),
            most=float(counts @ self.largest),
        )
