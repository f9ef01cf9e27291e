"""Curves of Rényi divergence as money: whole numbers of a fixed unit, rounded up, added without error."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, nextafter
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

UNIT: Final = 2.0**-44
"""Nats per unit."""

EXHAUSTED: Final = int(np.iinfo(np.int64).max)
"""The value of an order whose divergence is infinite or does not fit: about 524,288 nats and above."""

_EXHAUSTED: Final = np.array(EXHAUSTED)  # numpy takes twice as long to subtract from a Python number

DELTA_UNIT: Final = 2.0**-62
"""Probability per unit of a curve's delta, 2.2e-19."""

SAFETY: Final = 1 + 1e-9
"""Factor on every float before it is rounded up; it covers the formulas' error of 1e-10 ten times."""


@dataclass(frozen=True, slots=True, eq=False)
class RdpCurve:
    """A bound on the Rényi divergence at every order of a grid, and a probability with which it need not hold.

    Mechanisms that are (epsilon, delta)-DP only with a delta of their own are, but for an event of probability delta,
    indistinguishable from one whose divergence is bounded; those deltas add up beside the curve.

    Args:
        values: (n_orders,) int64 in [0, EXHAUSTED], units of 2^-44 nats; copied and made read-only.
        delta: in [0, EXHAUSTED], units of 2^-62.

    Raises:
        ValueError: the values are not one-dimensional int64, or one is negative, or delta is out of bounds.

    Source:
        Delta beside a divergence: approximate Rényi DP, Papernot & Steinke 2022 (arXiv 2110.03620), Definition 13.
    """

    values: NDArray[np.int64]
    delta: int = 0

    def __post_init__(self) -> None:
        """Keep an own read-only copy: a curve is a value, and one curve may be shared by many threads."""
        if self.values.dtype != np.int64 or self.values.ndim != 1 or bool((self.values < 0).any()):
            raise ValueError("A curve is a vector of int64, none of them negative.")
        if not 0 <= self.delta <= EXHAUSTED:
            raise ValueError("A curve's delta is a whole number of units, not negative, within int64.")
        own = self.values.copy()
        own.flags.writeable = False
        object.__setattr__(self, "values", own)

    def __reduce__(self) -> "tuple[Callable[..., RdpCurve], tuple[bytes, int]]":
        """Be read-only in another process, too."""
        return RdpCurve.from_bytes, (self.to_bytes(), self.delta)

    @classmethod
    def _of(cls, values: NDArray[np.int64], delta: int) -> Self:
        """Wrap a fresh vector that nobody else holds and that is known to be valid."""
        curve = object.__new__(cls)
        values.flags.writeable = False
        object.__setattr__(curve, "values", values)
        object.__setattr__(curve, "delta", delta)
        return curve

    @classmethod
    def zero(cls, n: int) -> Self:
        """Return the curve of having released nothing.

        Args:
            n: number of orders.

        Returns:
            A curve of `n` zeros.
        """
        return cls(np.zeros(n, dtype=np.int64))

    @classmethod
    def from_nats(cls, rdp: NDArray[np.float64], delta: float = 0.0) -> Self:
        """Round a computed divergence up to whole units; a positive one never becomes zero.

        Args:
            rdp: (n_orders,) nats, each at least 0, infinity allowed, relative error at most 1e-10.
            delta: probability with which the divergence is not bounded, in [0, 1], relative error at most 1e-10.

        Returns:
            The curve, nowhere below the true divergence; what does not fit into int64 is EXHAUSTED.

        Raises:
            ValueError: a value is negative or not a number, or delta is no probability.
        """
        if not bool((rdp >= 0).all()):
            raise ValueError("A Rényi divergence is a number of at least 0.")
        if not 0 <= delta <= 1:
            raise ValueError("The delta of a mechanism is a probability.")
        # Clipping first keeps the products finite. Scaling by a power of two and ceil are exact.
        units = np.ceil(np.minimum(rdp, EXHAUSTED * UNIT) * SAFETY / UNIT)
        fits = units < EXHAUSTED  # compared as 2^63, the nearest float: everything below it converts exactly
        return cls(
            np.where(fits, np.where(fits, units, 0.0).astype(np.int64), EXHAUSTED), ceil(delta * SAFETY / DELTA_UNIT)
        )

    @classmethod
    def from_bytes(cls, data: bytes, delta: int = 0) -> Self:
        """Read a curve back from its stored form.

        Args:
            data: 8 bytes an order, as `to_bytes` wrote them.
            delta: as it was stored beside them.

        Returns:
            The curve.

        Raises:
            ValueError: the length is no multiple of 8 or a value is negative.
        """
        return cls(np.frombuffer(data, dtype="<i8").astype(np.int64), delta)

    def to_bytes(self) -> bytes:
        """Return the stored form of the values; delta is stored beside it.

        Returns:
            8 bytes an order, little-endian int64.
        """
        return self.values.astype("<i8").tobytes()

    def __add__(self, other: "RdpCurve") -> "RdpCurve":
        """Compose two releases; an order whose sum does not fit is EXHAUSTED.

        Args:
            other: a curve over the same grid.

        Returns:
            The exact sum.

        Raises:
            ValueError: the curves have different numbers of orders.
        """
        if self.values.shape != other.values.shape:
            raise ValueError("Curves over different grids of orders cannot be added.")
        # The room above `other` is never negative, so neither operation can overflow.
        values = other.values + np.minimum(self.values, _EXHAUSTED - other.values)
        return RdpCurve._of(values, min(self.delta + other.delta, EXHAUSTED))

    def times(self, count: int) -> "RdpCurve":
        """Compose `count` repetitions; this is the one place that multiplies by a count.

        Args:
            count: number of repetitions, at least 0.

        Returns:
            The exact product; an order whose product does not fit is EXHAUSTED.

        Raises:
            ValueError: the count is negative.
        """
        if count < 0:
            raise ValueError("A count of repetitions is at least 0.")
        if count == 1:
            return self
        if count == 0:
            return RdpCurve.zero(self.values.size)
        # A count beyond int64 leaves only zeros that fit, and those may be multiplied by anything.
        product = np.minimum(self.values, EXHAUSTED // count) * np.int64(min(count, EXHAUSTED))
        product[self.values > EXHAUSTED // count] = EXHAUSTED
        return RdpCurve._of(product, min(self.delta * count, EXHAUSTED))

    def at(self, places: NDArray[np.intp] | slice) -> "RdpCurve":
        """Return the curve at some of its orders.

        Args:
            places: (n,) indices into the grid, or a slice of it.

        Returns:
            The curve over these orders, with the same delta.
        """
        return RdpCurve._of(self.values[places], self.delta)

    def nats(self) -> NDArray[np.float64]:
        """Return the curve in nats, for conversion and display.

        Returns:
            (n_orders,) float64, nowhere below the exact value, infinite where the curve is EXHAUSTED.
        """
        nats: NDArray[np.float64] = self.values * np.float64(UNIT)
        # Above 2^53 units the conversion rounds to nearest, possibly down; the next float is above for certain.
        if self.values.max(initial=0) > 2**53:
            inexact = self.values > 2**53
            nats[inexact] = np.nextafter(nats[inexact], np.inf)
            nats[self.values == EXHAUSTED] = np.inf
        return nats

    def delta_value(self) -> float:
        """Return delta as a probability, for conversion and display.

        Returns:
            A float nowhere below the exact value; 1 where deltas add up to more, since no probability is larger.
        """
        value = self.delta * DELTA_UNIT
        if Fraction(value) < self.delta * Fraction(DELTA_UNIT):
            value = nextafter(value, inf)
        return min(value, 1.0)

    def covers(self, other: "RdpCurve") -> bool:
        """Tell whether at least as much was released as by another curve.

        Args:
            other: a curve over the same grid.

        Returns:
            True if no order, nor delta, is below the other's.
        """
        return self.delta >= other.delta and bool((self.values >= other.values).all())

    @property
    def is_zero(self) -> bool:
        """Tell whether nothing was released.

        Returns:
            True if every order and delta are 0.
        """
        return not (self.delta or self.values.any())

    @property
    def is_exhausted(self) -> bool:
        """Tell whether everything was lost.

        Returns:
            True if every order is EXHAUSTED.
        """
        return bool((self.values == EXHAUSTED).all())

    def __eq__(self, other: object) -> bool:
        """Compare by value.

        Args:
            other: anything.

        Returns:
            True if `other` is a curve with the same bytes and the same delta.
        """
        return isinstance(other, RdpCurve) and self.delta == other.delta and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        """Hash by value.

        Returns:
            The hash of the bytes and of delta.
        """
        return hash((self.to_bytes(), self.delta))
