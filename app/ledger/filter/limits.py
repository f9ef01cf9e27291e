"""Limits of accounts, in the unit in which each is kept (ADR 0052)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import floor, inf, log, nextafter, sqrt
from typing import Any, Final

import numpy as np
import scipy

from app.accounting.conversion import epsilon_from_rdp
from app.accounting.exact_losses import PER_NAT, UNBOUNDED_LOSSES, Coordinate, exact
from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.ledger.errors import InvalidInputError
from app.ledger.wording import format_exact

STATED_DELTA: Final = 1e-6
"""Delta at which the epsilon of an account is shown whose limit has none."""

MAX_EPSILON: Final = 10_000.0
MAX_RHO: Final = 10_000.0
MAX_MU: Final = 100.0
MIN_DELTA: Final = 1e-30

SMALLEST_RHO: Final = 1e-100
"""Smaller ones are converted as this one, so that nothing overflows."""


class Unit(StrEnum):
    """The unit of a limit: epsilon at a delta, rho of zCDP, or mu of Gaussian DP."""

    EPSILON = "epsilon"
    RHO = "rho"
    MU = "mu"


MOST: Final = {Unit.EPSILON: MAX_EPSILON, Unit.RHO: MAX_RHO, Unit.MU: MAX_MU}
"""Largest value of a limit in each unit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The maximum loss, in one unit.

    Args:
        value: above 0 and at most that of `MOST`; epsilon in nats.
        delta: 0, or in [1e-30, 0.5). With epsilon it is that of the guarantee, with rho the most that mechanisms' own
            deltas may sum to, and with mu 0.
        unit: of the value.
    """

    value: float
    delta: float
    unit: Unit = Unit.EPSILON

    def __post_init__(self) -> None:
        """Check the ranges."""
        most = MOST[self.unit]
        if not 0 < self.value <= most:
            raise InvalidInputError(f"The limit's {self.unit} must be in (0, {most:.0f}], not {self.value}.")
        if self.delta and self.unit is Unit.MU:
            raise InvalidInputError(
                "A limit in mu has no delta: leave `delta` out, or send epsilon and delta, or rho and delta, instead."
            )
        if self.delta and not MIN_DELTA <= self.delta < 0.5:  # noqa: PLR2004 - the range is documented above
            raise InvalidInputError(f"The limit's delta must be 0, or in [1e-30, 0.5), not {self.delta}.")

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Limit":
        """Read a limit from its facts; raise KeyError or StopIteration if they are none."""
        unit = next(each for each in Unit if each in facts)
        return cls(facts[unit], facts["delta"] if unit is Unit.EPSILON else facts.get("delta", 0.0), unit)

    def facts(self) -> dict[str, float]:
        """Get its JSON, as requests have it; a delta of 0 is left out unless the unit is epsilon."""
        has_delta = self.delta > 0 or self.unit is Unit.EPSILON
        return {str(self.unit): self.value} | ({"delta": self.delta} if has_delta else {})

    def __str__(self) -> str:
        """Write it for people, as in "epsilon 2 at delta 1e-6"."""
        at = f" at delta {format_exact(self.delta)}" if self.delta or self.unit is Unit.EPSILON else ""
        return f"{self.unit} {format_exact(self.value)}{at}"

    @property
    def is_exact(self) -> bool:
        """Whether one loss that adds up exactly decides, so that there is no filter to tune."""
        return self.unit is not Unit.EPSILON or not self.delta

    @property
    def coordinate(self) -> Coordinate:
        """The exact loss that it bounds."""
        return _COORDINATES[self.unit]

    def most(self) -> int:
        """Get the largest loss at its coordinate, in units of 1 / PER_NAT, rounded down."""
        value = exact(self.value)
        return floor((value * value if self.unit is Unit.MU else value) * PER_NAT)

    def has_rule_of(self, other: "Limit") -> bool:
        """Check whether another limit bounds the same loss: pure epsilon is a unit of its own."""
        return self.bounded == other.bounded

    def value_for(self, loss: int) -> float:
        """Compute the smallest value, rounded up, with which a loss at its coordinate is within it; maybe infinite."""
        if loss == UNBOUNDED_LOSSES[self.coordinate]:
            return inf
        nearest = loss / PER_NAT
        value = sqrt(nearest) if self.unit is Unit.MU else nearest
        while value and replace(self, value=value).most() < loss:
            value = nextafter(value, inf)
        return value

    @property
    def parameters(self) -> str:
        """The names of what it bounds, as in "(epsilon, delta)"."""
        return f"({self.unit}, delta)" if self.delta else str(self.unit)

    @property
    def notion(self) -> str:
        """What a release within it is, as in "(epsilon, delta)-differentially private"."""
        if self.unit is Unit.EPSILON:
            return "(epsilon, delta)-differentially private" if self.delta else "epsilon-differentially private"
        if self.unit is Unit.MU:
            return "mu-Gaussian differentially private"
        approximately = "delta-approximately " if self.delta else ""
        return f"{approximately}rho-zero-concentrated differentially private"

    @property
    def bounded(self) -> str:
        """The bounded loss in words."""
        if self.unit is not Unit.EPSILON:
            return str(self.unit)
        return "epsilon and delta" if self.delta else "pure epsilon (delta 0)"

    @property
    def shown_delta(self) -> float:
        """The delta at which the account's epsilon is shown.

        It is that of a limit in epsilon. With rho and mu it is STATED_DELTA, or twice the limit's delta: half of it is
        for mechanisms' own deltas, and half for the conversion.
        """
        if self.unit is Unit.EPSILON:
            return self.delta
        return 2 * self.delta if self.delta else STATED_DELTA

    @property
    def epsilon(self) -> float:
        """The epsilon that it implies at the delta that is shown."""
        return self.value if self.unit is Unit.EPSILON else self.epsilon_at(self.shown_delta)

    def epsilon_at(self, delta: float) -> float:
        """Compute an epsilon that follows from the limit at a delta, rounded up; infinite if none is proven."""
        return _epsilon_at(self, delta)

    @property
    def rho(self) -> float | None:
        """The rho of zCDP that follows from the limit; None if none does.

        Of pure epsilon-DP it is epsilon^2 / 2 (Bun, Steinke 2016, Proposition 1.4), of mu-Gaussian DP mu^2 / 2.
        """
        if self.unit is Unit.RHO:
            return self.value
        return self.value**2 / 2 if self.is_exact else None

    @property
    def mu(self) -> float | None:
        """The mu of Gaussian DP that follows from the limit; None if none does.

        Of pure epsilon-DP it is -2 Phi^-1(1 / (1 + e^epsilon)): its trade-off is two lines, above the convex one of
        Gaussian DP that passes through the same point in the middle (Dong, Roth, Su 2019, arXiv 1905.02383).
        """
        if self.unit is Unit.MU:
            return self.value
        if self.unit is Unit.RHO or self.delta:
            return None
        found = float(-2 * scipy.special.ndtri_exp(-np.logaddexp(0.0, self.value)))
        return max(found, 0.0) * (1 + 1e-12) + 1e-15  # the errors of both functions


_COORDINATES: Final = {Unit.EPSILON: Coordinate.PURE, Unit.RHO: Coordinate.RHO, Unit.MU: Coordinate.MU_SQUARED}


@lru_cache(maxsize=4096)
def _epsilon_at(limit: Limit, delta: float) -> float:
    left = delta - limit.delta
    if limit.unit is Unit.EPSILON:
        return limit.value if left >= 0 else inf
    if left <= 0:
        return inf
    if limit.unit is Unit.MU:
        return gaussian_epsilon(limit.value, left)
    return zcdp_epsilon(limit.value, left)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Compute the epsilon at a delta in (0, 1) of rho-zCDP, rounded up: by the best of many Rényi orders.

    Each order proves one (Canonne, Kamath, Steinke 2020, arXiv 2004.00010, Proposition 12); the best one is near
    1 + sqrt(ln(1 / delta) / rho).
    """
    rho = max(rho, SMALLEST_RHO)
    near = sqrt(log(1 / delta) / rho)
    orders = 1 + near * np.geomspace(1e-3, 1e3, 8001)
    return epsilon_from_rdp(orders, rho * orders, delta).epsilon * (1 + 1e-9)
