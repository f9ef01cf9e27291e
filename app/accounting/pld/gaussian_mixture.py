"""Dominating pairs of mixtures: of Gaussians, and of cases that do not depend on the data."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy

from app.accounting.curves import Floats
from app.accounting.formulas.gaussian_mixture import Mixture
from app.accounting.pld.pairs import LOSS_ERROR, MIXTURE_ERROR, Pair, Tails, normal_errors

REACH: Final = 40.0
"""Standard deviations beyond which a tail of the normal distribution is no positive number."""

MOST_ROUNDS: Final = 200
LOOKED_UP: Final = 1024
"""Places of a table of losses, from which the search for each begins."""

CLOSE: Final = 2.0**-50
"""Relative error of a loss at which the search for it ends; what is left is counted."""


@dataclass(frozen=True, slots=True)
class GaussianMixturePair:
    """Normal distributions with means 0 (Q) and drawn means (P), or the other way round.

    It dominates a vector that moves by drawn distances (`app.accounting.formulas.gaussian_mixture`).

    Args:
        mixture: of the means, in units of the largest.
        removes: whether the mixture comes first.
    """

    mixture: Mixture
    removes: bool

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: the mixture's loss grows with x, so each loss has its x."""
        s = self.mixture.noise_multiplier
        x, error = self._places(losses if self.removes else -losses[::-1])
        sizes, shares = np.array(self.mixture.sizes)[:, np.newaxis], np.array(self.mixture.shares)
        below, above = (shares @ scipy.special.ndtr(side * (x - sizes) / s) for side in (1, -1))
        none_below, none_above = scipy.special.ndtr(x / s), scipy.special.ndtr(-x / s)
        errors = normal_errors((np.abs(x) + 1) / s) + MIXTURE_ERROR * len(self.mixture.sizes)
        if self.removes:
            return Tails(below, above, none_below, none_above, errors, error)
        return Tails(none_above[::-1], none_below[::-1], above[::-1], below[::-1], errors[::-1], error)

    def _places(self, losses: Floats) -> tuple[Floats, float]:
        """Find where the mixture has these losses, by Newton's method, and the largest error of a loss there.

        The loss is convex in x, so that from a place with a larger loss all further ones have larger losses.
        """
        mixture, s = self.mixture, self.mixture.noise_multiplier
        low, high = -REACH * s, 1 + REACH * s
        scale = LOSS_ERROR * (1 + float(np.abs(losses).max()) + (1 + REACH * s) / s**2)
        ends = mixture.log_ratio(np.array([low, high]))
        x = np.where(losses < ends[0], low, high)
        inside = (losses >= ends[0]) & (losses < ends[1])
        wanted, found = losses[inside], x[inside]
        error = np.zeros(1)
        for _ in range(MOST_ROUNDS):
            error = mixture.log_ratio(found) - wanted
            if not error.size or np.abs(error).max() <= CLOSE * scale / LOSS_ERROR:
                break
            found = np.maximum(found - error / mixture.slope(found), low)
        x[inside] = found
        return x, scale + float(np.abs(error).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class ReplacedMixturePair:
    """Normal distributions with drawn means (P), and with their negatives (Q); equal in both directions.

    It dominates a vector that moves by drawn distances one way on one neighbour, and any other way on the other
    (`app.accounting.formulas.gaussian_mixture`).

    Args:
        mixture: of the means, in units of the largest.
    """

    mixture: Mixture

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: the loss grows with x, so each loss has its x."""
        s = self.mixture.noise_multiplier
        x, error = self._places(losses)
        sizes, shares = np.array(self.mixture.sizes)[:, np.newaxis], np.array(self.mixture.shares)
        p_below, p_above, q_below, q_above = (
            shares @ scipy.special.ndtr(side * (x - mean) / s) for mean in (sizes, -sizes) for side in (1, -1)
        )
        errors = normal_errors((np.abs(x) + 1) / s) + MIXTURE_ERROR * len(self.mixture.sizes)
        return Tails(p_below, p_above, q_below, q_above, errors, error)

    def _places(self, losses: Floats) -> tuple[Floats, float]:
        """Find where the pair has these losses, by Newton's method within a bracket, and the largest error there."""
        mixture, s = self.mixture, self.mixture.noise_multiplier
        end = 1 + REACH * s
        scale = LOSS_ERROR * (1 + float(np.abs(losses).max()) + 2 * end / s**2)
        table = np.linspace(-end, end, LOOKED_UP)
        known = np.maximum.accumulate(self._loss(table))
        x = np.where(losses < 0, -end, end)
        inside = np.abs(losses) < known[-1]
        wanted = losses[inside]
        above = np.searchsorted(known, wanted)
        low, high = table[np.maximum(above - 2, 0)], table[np.minimum(above + 1, LOOKED_UP - 1)]
        found = np.interp(wanted, known, table)
        error = np.zeros(1)
        for _ in range(MOST_ROUNDS):
            error = self._loss(found) - wanted
            if not error.size or np.abs(error).max() <= CLOSE * scale / LOSS_ERROR:
                break
            low, high = np.where(error < 0, found, low), np.where(error < 0, high, found)
            following = found - error / (mixture.slope(found) + mixture.slope(-found))
            # A place that is found is an end of its bracket, and stays.
            found = np.where((low <= following) & (following <= high), following, (low + high) / 2)
        x[inside] = found
        return x, scale + float(np.abs(error).max(initial=0.0))

    def _loss(self, x: Floats) -> Floats:
        return self.mixture.log_ratio(x) - self.mixture.log_ratio(-x)


@dataclass(frozen=True, slots=True)
class CasesPair:
    """A pair for each of some cases, whose probabilities do not depend on the data; the output shows the case.

    Args:
        shares: probabilities of the cases.
        pairs: of the cases, in the same direction.
    """

    shares: tuple[float, ...]
    pairs: tuple[Pair, ...]

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: the means of those of the cases."""
        each = [pair.tails(losses) for pair in self.pairs]
        below, above, none_below, none_above = (
            np.array(self.shares) @ np.array([getattr(tails, name) for tails in each])
            for name in ("p_below", "p_above", "q_below", "q_above")
        )
        errors = np.max([tails.tail_errors for tails in each], axis=0) + MIXTURE_ERROR * len(each)
        return Tails(below, above, none_below, none_above, errors, max(tails.loss_error for tails in each))
