"""Rényi curves over a versioned grid of orders: integers, rounded up and added exactly. See docs/adr/0004."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil, inf, nextafter
from operator import add, ge
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.accounting.errors import UnknownGridVersionError
from app.accounting.exact_losses import NO_LOSSES, UNBOUNDED_LOSSES, ExactLosses

Floats: TypeAlias = NDArray[np.float64]

Usage: TypeAlias = Mapping[str, tuple[int, ...]]
"""What releases use up of plans that were fixed in advance: counts of mechanisms, by the account that has the plan."""

UNIT: Final = 2.0**-44
"""Nats per unit."""

EXHAUSTED: Final = int(np.iinfo(np.int64).max)
"""Value of an order whose divergence is infinite or does not fit: about 524,288 nats and above."""

_WORD: Final = 8
"""Bytes of the words of a serialized curve."""

_EXHAUSTED: Final = np.array(EXHAUSTED)  # subtracting from a Python int takes numpy twice as long

DELTA_UNIT: Final = Fraction(1, 10**18)
"""Probability per unit of a curve's delta: deltas that people write in decimals add up exactly."""

SAFETY: Final = 1 + 1e-9
"""Factor applied to floats before rounding up: ten times the formulas' error of 1e-10."""

GRID_VERSION: Final = 1
"""Version of the grid, stored with each account."""

HIGHEST: Final = 1024.0
"""The highest order at which divergences are computed."""

PURE: Final = 2.0**60
"""An order that represents infinity: there the divergence is the largest privacy loss, so epsilons of pure mechanisms
add up exactly. Its conversion to epsilon costs less than 1e-15. See docs/adr/0008."""


@lru_cache
def orders(grid_version: int) -> Floats:
    """Get the read-only, increasing orders of a grid version."""
    if grid_version != GRID_VERSION:
        raise UnknownGridVersionError(f"The grid of orders {grid_version} is unknown; known is {GRID_VERSION}.")
    # The curve of a sampled Gaussian bends upwards at one order, by a factor of up to 1/q per order, and for small
    # epsilons the best order is in that bend. If the nearest grid order is x away from it, epsilon is too large by a
    # share of about ln(1/q) x^2 / (2 (a - 1)): the spacing must grow with the root of a - 1. Steps of 1/70 in that root
    # keep DP-SGD (q from 1e-4, noise multiplier 0.5 to 10, delta 1e-5 to 1e-10, epsilon 0.1 to 20) within 0.1 % of the
    # best order: measured 0.09 % at worst, 0.0004 % at the median (benchmarks/orders_grid.py). For comparison: 128
    # geometric orders 7.6 % and 0.026 %; dp_accounting's 155 orders 86 % and 0.004 %. No best order was above 335; the
    # tail serves smaller epsilons.
    bend = 1 + np.arange(16, 1293) ** 2 / 4900
    tail = np.concatenate([np.arange(344, 512, 8), np.arange(512, 1025, 16)])
    grid = np.append(np.unique(np.concatenate([bend, np.arange(2, 65), tail])), PURE)
    grid.flags.writeable = False
    return grid


def finite_orders(grid_version: int) -> Floats:
    """Get the orders of a grid without `PURE`: the others bound unbounded noise, as Gaussian noise is."""
    return orders(grid_version)[:-1]


@dataclass(frozen=True, slots=True, eq=False)
class RdpCurve:
    """An upper bound on the Rényi divergence at each order of a grid.

    A mechanism with its own delta is, except with that probability, indistinguishable from one whose divergence is
    bounded; these deltas add up separately (approximate RDP: Papernot & Steinke 2022, arXiv 2110.03620, Definition 13;
    docs/adr/0007).

    Args:
        values: (n_orders,) int64 in [0, EXHAUSTED], units of 2^-44 nats; copied and made read-only.
        delta: in [0, EXHAUSTED], units of 1e-18.
        used: further integers that add up with it, of accounts' plans (docs/adr/0038).
        exact: further bounds, which are kept exactly (docs/adr/0046, docs/adr/0052).
    """

    values: NDArray[np.int64]
    delta: int = 0
    used: Usage = field(default_factory=dict)
    exact: ExactLosses = field(default=UNBOUNDED_LOSSES, repr=False)

    def __post_init__(self) -> None:
        """Copy the values read-only: curves are shared between threads."""
        if self.values.dtype != np.int64 or self.values.ndim != 1 or bool((self.values < 0).any()):
            raise ValueError("A curve is a vector of int64, none of them negative.")
        if not 0 <= self.delta <= EXHAUSTED:
            raise ValueError("A curve's delta is a whole number of units, not negative, within int64.")
        if not all(0 <= each <= most for each, most in zip(self.exact, UNBOUNDED_LOSSES, strict=True)):
            raise ValueError("An exact loss is a whole number of units from 0 to where it is unbounded.")
        own = self.values.copy()
        own.flags.writeable = False
        object.__setattr__(self, "values", own)

    def __reduce__(self) -> "tuple[Callable[..., RdpCurve], tuple[bytes, int, Usage]]":
        """Pickle by value, so that an unpickled curve is read-only too."""
        return RdpCurve.from_bytes, (self.to_bytes(), self.delta, self.used)

    @classmethod
    def _of(cls, values: NDArray[np.int64], delta: int, used: Usage, exact: ExactLosses) -> Self:
        """Wrap a fresh, valid vector without copying it."""
        curve = object.__new__(cls)
        values.flags.writeable = False
        object.__setattr__(curve, "values", values)
        object.__setattr__(curve, "delta", delta)
        object.__setattr__(curve, "used", used)
        object.__setattr__(curve, "exact", exact)
        return curve

    @classmethod
    def zero(cls, n: int) -> Self:
        """Create the curve of no release over `n` orders."""
        return cls(np.zeros(n, dtype=np.int64), exact=NO_LOSSES)

    @classmethod
    def from_nats(cls, rdp: Floats, delta: float | Fraction = 0.0) -> Self:
        """Round a computed divergence up to whole units; a positive one never becomes zero.

        `rdp` is (n_orders,) nats of at least 0, infinity allowed, `delta` a failure probability in [0, 1]; both with a
        relative error of at most 1e-10, but for an exact fraction. Values that do not fit into int64 are EXHAUSTED.
        """
        if not bool((rdp >= 0).all()):
            raise ValueError("A Rényi divergence is a number of at least 0.")
        if not 0 <= delta <= 1:
            raise ValueError("The delta of a mechanism is a probability.")
        exact = NO_LOSSES if not delta and not rdp.any() else UNBOUNDED_LOSSES
        # Clipping first keeps the products finite. Scaling by a power of two and ceil are exact.
        units = np.ceil(np.minimum(rdp, EXHAUSTED * UNIT) * SAFETY / UNIT)
        fits = units < EXHAUSTED  # EXHAUSTED compares as 2^63, the nearest float: everything below converts exactly
        values = np.where(fits, np.where(fits, units, 0.0).astype(np.int64), EXHAUSTED)
        failure = delta if isinstance(delta, Fraction) else delta * SAFETY
        return cls(values, ceil(failure / DELTA_UNIT), exact=exact)

    @classmethod
    def from_bytes(cls, data: bytes, delta: int = 0, used: Usage | None = None) -> Self:
        """Read a curve from the bytes of `to_bytes`, its stored delta and usage of plans; no bytes have no orders."""
        end = len(data) - _WORD
        sizes = [_WORD * each for each in struct.unpack("<4H", data[end:])] if end >= 0 else []
        begin = end - sum(sizes)
        if data and begin < 0:
            raise ValueError("The bytes of a curve end with its exact losses and their lengths.")
        values = np.frombuffer(data[: max(begin, 0)], dtype="<i8").astype(np.int64)
        losses = []
        for size, most in zip(sizes, UNBOUNDED_LOSSES, strict=False):
            losses.append(int.from_bytes(data[begin : begin + size], "little") if size else most)
            begin += size
        return cls(values, delta, used or {}, ExactLosses(*losses) if losses else UNBOUNDED_LOSSES)

    def to_bytes(self) -> bytes:
        """Serialize the values as little-endian int64, then the exact losses; delta and usage are stored separately.

        Each loss is a little-endian integer of so many words of 8 bytes as 16 bits of the last word say, from the
        lowest; none if it is unbounded.
        """
        sizes = [
            0 if loss == most else loss.bit_length() // (8 * _WORD) + 1
            for loss, most in zip(self.exact, UNBOUNDED_LOSSES, strict=True)
        ]
        losses = [loss.to_bytes(_WORD * size, "little") for loss, size in zip(self.exact, sizes, strict=True) if size]
        return b"".join([self.values.astype("<i8").tobytes(), *losses, struct.pack("<4H", *sizes, 0)])

    def __add__(self, other: "RdpCurve") -> "RdpCurve":
        """Compose two releases exactly; a sum that does not fit is EXHAUSTED."""
        if self.values.shape != other.values.shape:
            raise ValueError("Curves over different grids of orders cannot be added.")
        # EXHAUSTED - other is never negative, so neither operation can overflow.
        values = other.values + np.minimum(self.values, _EXHAUSTED - other.values)
        delta = min(self.delta + other.delta, EXHAUSTED)
        return RdpCurve._of(values, delta, added(self.used, other.used), self.exact.plus(other.exact))

    def times(self, count: int) -> "RdpCurve":
        """Compose `count` repetitions exactly; a product that does not fit is EXHAUSTED."""
        if count < 0:
            raise ValueError("A count of repetitions is at least 0.")
        if count == 1:
            return self
        if count == 0:
            return RdpCurve.zero(self.values.size).using({owner: (0,) * len(each) for owner, each in self.used.items()})
        # For a count beyond int64 only zeros fit, and those may be multiplied by anything.
        product = np.minimum(self.values, EXHAUSTED // count) * np.int64(min(count, EXHAUSTED))
        product[self.values > EXHAUSTED // count] = EXHAUSTED
        used = {owner: tuple([each * count for each in counts]) for owner, counts in self.used.items()}
        return RdpCurve._of(product, min(self.delta * count, EXHAUSTED), used, self.exact.times(count))

    def using(self, used: Usage) -> "RdpCurve":
        """Copy the curve with another usage of plans."""
        return self if not used and not self.used else RdpCurve._of(self.values, self.delta, used, self.exact)

    def with_exact(self, exact: ExactLosses) -> "RdpCurve":
        """Copy the curve with other exact losses."""
        return RdpCurve._of(self.values, self.delta, self.used, exact)

    def at(self, places: NDArray[np.intp] | slice) -> "RdpCurve":
        """Select some orders by grid index or slice; delta and the exact losses stay."""
        return RdpCurve._of(self.values[places], self.delta, self.used, self.exact)

    def nats(self) -> Floats:
        """Convert to nats, rounded up; infinite at EXHAUSTED orders."""
        return nats_of(self.values)

    def delta_value(self) -> float:
        """Convert delta to a probability, rounded up and at most 1."""
        value = float(self.delta * DELTA_UNIT)
        if Fraction(value) < self.delta * DELTA_UNIT:
            value = nextafter(value, inf)
        return min(value, 1.0)

    def covers(self, other: "RdpCurve") -> bool:
        """Check that no order, nor delta or an exact loss, is below the other curve's."""
        no_less = self.delta >= other.delta and all(map(ge, self.exact, other.exact))
        return no_less and bool((self.values >= other.values).all())

    @property
    def pure(self) -> int:
        """The bound on the privacy loss itself."""
        return self.exact.pure

    @property
    def is_zero(self) -> bool:
        """Whether every order, delta and the exact losses are 0."""
        return not (any(self.exact) or self.delta or self.values.any())

    @property
    def is_exhausted(self) -> bool:
        """Whether every order is EXHAUSTED."""
        return bool((self.values == EXHAUSTED).all())

    def __eq__(self, other: object) -> bool:
        """Compare values, delta, usage of plans and exact losses."""
        if not isinstance(other, RdpCurve) or (self.delta, self.used) != (other.delta, other.used):
            return False
        return self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        """Hash values, delta and exact losses."""
        return hash((self.to_bytes(), self.delta))


def added(one: Usage, other: Usage) -> Usage:
    """Add what two releases use up of plans."""
    if not one or not other:
        return one or other
    both = {owner: tuple(map(add, counts, other[owner])) for owner, counts in one.items() if owner in other}
    return {**one, **other, **both}


def nats_of(units: NDArray[np.int64]) -> Floats:
    """Convert units to nats, rounded up; infinite at EXHAUSTED orders."""
    nats: Floats = units * np.float64(UNIT)
    # Above 2^53 units the conversion rounds to nearest, possibly down: take the next float.
    if units.max(initial=0) > 2**53:
        inexact = units > 2**53
        nats[inexact] = np.nextafter(nats[inexact], np.inf)
        nats[units == EXHAUSTED] = np.inf
    return nats
