"""Losses that add up exactly beside a curve: the pure loss, rho of zCDP, and mu^2 of Gaussian DP (ADR 0046, 0052)."""

from collections.abc import Callable
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, inf, lcm, nextafter
from typing import Final, NamedTuple, Self

PER_NAT: Final = 10**40 * lcm(*range(1, 1001)) ** 2
"""Units of a pure loss per nat, and of rho and mu^2 per 1. Decimals, and their quotients by whole numbers up to 1,000
and by the squares of these, are whole numbers of units, so that their sums are exact."""


class Coordinate(IntEnum):
    """The place of an exact loss in `ExactLosses`."""

    PURE = 0
    RHO = 1
    MU_SQUARED = 2


class ExactLosses(NamedTuple):
    """Bounds on a release, each in units of 1 / PER_NAT and at most that of `UNBOUNDED_LOSSES`.

    Args:
        pure: on the privacy loss itself, its divergence of order infinity.
        rho: the divergence of every order a is at most rho a.
        mu_squared: it is no easier to tell apart than N(0, 1) and N(mu, 1).
    """

    pure: int
    rho: int
    mu_squared: int

    def plus(self, other: "ExactLosses") -> "ExactLosses":
        """Compose two releases; a sum that does not fit is unbounded."""
        pure, rho, mu_squared = UNBOUNDED_LOSSES
        return ExactLosses(
            min(self.pure + other.pure, pure),
            min(self.rho + other.rho, rho),
            min(self.mu_squared + other.mu_squared, mu_squared),
        )

    def times(self, count: int) -> "ExactLosses":
        """Compose repetitions, as `plus` does."""
        pure, rho, mu_squared = UNBOUNDED_LOSSES
        return ExactLosses(
            min(self.pure * count, pure), min(self.rho * count, rho), min(self.mu_squared * count, mu_squared)
        )

    def join(self, other: "ExactLosses", choose: Callable[[int, int], int]) -> "ExactLosses":
        """Choose from each pair of losses, as by max or min."""
        return ExactLosses(*map(choose, self, other))

    def less(self, part: "ExactLosses") -> "ExactLosses":
        """Subtract a term of a sum; what is unbounded stays so."""
        triples = zip(self, part, UNBOUNDED_LOSSES, strict=True)
        return ExactLosses(*(each if each == most else each - one for each, one, most in triples))

    def unbounded(self) -> frozenset[int]:
        """List the coordinates of unbounded losses."""
        return frozenset(at for at, most in enumerate(UNBOUNDED_LOSSES) if self[at] == most)

    def with_loss(self, at: int, loss: int) -> Self:
        """Copy them with another loss at a coordinate."""
        return self._replace(**{self._fields[at]: loss})


UNBOUNDED_LOSSES: Final = ExactLosses(2**19 * PER_NAT, 2**128 * PER_NAT, 2**128 * PER_NAT)
"""Losses that are infinite, or do not fit: pure ones of 524,288 nats and above."""

UNBOUNDED: Final = UNBOUNDED_LOSSES.pure

NO_LOSSES: Final = ExactLosses(0, 0, 0)
"""Of what releases nothing."""


def pure_units(epsilon: float | Fraction) -> int:
    """Convert a pure loss, in nats, to units, rounded up; a float is read as it is written."""
    if epsilon == inf:
        return UNBOUNDED
    return min(ceil((exact(epsilon) if isinstance(epsilon, float) else epsilon) * PER_NAT), UNBOUNDED)


def pure_limit(epsilon: float) -> int:
    """Convert the largest pure loss that a limit allows to units, rounded down; see `pure_units`."""
    return floor(exact(epsilon) * PER_NAT)


def pure_nats(pure: int) -> float:
    """Convert a pure loss to the next float that is no less as it is written."""
    if pure >= UNBOUNDED:
        return inf
    nearest = pure / PER_NAT
    return nearest if pure_limit(nearest) >= pure else nextafter(nearest, inf)


def pure_nats_within(pure: int) -> float:
    """Convert what is left of a pure loss to the float before that is no more as it is written; 0 if it is exceeded."""
    nearest = max(pure, 0) / PER_NAT
    return nearest if pure_units(nearest) <= pure else max(nextafter(nearest, 0.0), 0.0)


@lru_cache(maxsize=4096)
def exact(number: float) -> Fraction:
    """Read a number as it is written: 0.1 is a tenth, so that 0.1 and 0.2 are 0.3."""
    return Fraction(repr(number))


def quotient(asked: int, whole: int) -> float:
    """Divide by a whole number of at least 0; infinite where that is 0, or beyond the floats."""
    try:
        return asked / whole if whole else inf if asked else 0.0
    except OverflowError:
        return inf if asked > 0 else -inf
