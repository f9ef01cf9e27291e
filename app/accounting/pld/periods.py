"""Periods with which repeated sums of tilted losses add little to delta."""

from math import log
from typing import Final

import numpy as np

from app.accounting.curves import Floats

STEEPER: Final = np.array([1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0])
"""Multiples of the tilt by which deltas at large epsilons are bounded."""


def period_adding(tilt: float, steeper: Floats, epsilon: float, log_added: float) -> float:
    """Find a length T, in nats, with which periods add no more than e^log_added to delta at epsilon.

    They add e^(-t j T) delta(epsilon + j T) for each j but 0. Deltas are at most 1, and at most e^(K(s) - s epsilon)
    times the largest of (1 - e^-x) e^(-s x), which is s^s / (s + 1)^(s + 1), for any s.

    Args:
        tilt: t.
        steeper: K(s) for each s, which is one of STEEPER times t.
        epsilon: nats.
        log_added: as above.
    """
    s = tilt * STEEPER
    bounds = steeper - s * epsilon - np.log1p(s) - s * np.log1p(1 / s)
    before = -(log_added - log(2)) / tilt
    after = float(np.min((bounds - log_added + log(2)) / (s - tilt)))
    # The further ones are at most as much again if the first is below half.
    return max(before + log(2) / tilt, after + log(2) / (tilt * (float(STEEPER[0]) - 1)))
