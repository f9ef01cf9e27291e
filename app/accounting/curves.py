"""Curves of Rényi divergence as money: whole numbers of a fixed unit, rounded up, added without error."""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

UNIT: Final = 2.0**-44
"""Nats per unit."""

EXHAUSTED: Final = int(np.iinfo(np.int64).max)
"""The value of an order whose divergence is infinite or does not fit: about 524,288 nats and above."""

SAFETY: Final = 1 + 1e-9
"""Factor on every float before it is rounded up; it covers the formulas' error of 1e-10 ten times."""


@dataclass(frozen=True, slots=True, eq=False)
class RdpCurve:
    """A bound on the Rényi divergence at every order of a grid.

    Args:
        values: (n_orders,) int64 in [0, EXHAUSTED], units of 2^-44 nats; copied and made read-only.

    Raises:
        ValueError: the values are not one-dimensional int64 or one is negative.
    """

    values: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Keep an own read-only copy: a curve is a value, and one curve may be shared by many threads."""
        if self.values.dtype != np.int64 or self.values.ndim != 1 or bool(np.any(self.values < 0)):
            raise ValueError("A curve is a vector of int64, none of them negative.")
        own = self.values.copy()
        own.flags.writeable = False
        object.__setattr__(self, "values", own)

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
    def from_nats(cls, rdp: NDArray[np.float64]) -> Self:
        """Round a computed divergence up to whole units; a positive one never becomes zero.

        Args:
            rdp: (n_orders,) nats, each at least 0, infinity allowed, relative error at most 1e-10.

        Returns:
            The curve, nowhere below the true divergence; what does not fit into int64 is EXHAUSTED.

        Raises:
            ValueError: a value is negative or not a number.
        """
        if not bool(np.all(rdp >= 0)):
            raise ValueError("A Rényi divergence is a number of at least 0.")
        # Clipping first keeps the products finite. Scaling by a power of two and ceil are exact.
        units = np.ceil(np.minimum(rdp, EXHAUSTED * UNIT) * SAFETY / UNIT)
        fits = units < EXHAUSTED  # compared as 2^63, the nearest float: everything below it converts exactly
        return cls(np.where(fits, np.where(fits, units, 0.0).astype(np.int64), EXHAUSTED))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a curve back from its stored form.

        Args:
            data: 8 bytes an order, as `to_bytes` wrote them.

        Returns:
            The curve.

        Raises:
            ValueError: the length is no multiple of 8 or a value is negative.
        """
        return cls(np.frombuffer(data, dtype="<i8").astype(np.int64))

    def to_bytes(self) -> bytes:
        """Return the stored form.

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
        return RdpCurve(other.values + np.minimum(self.values, EXHAUSTED - other.values))

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
        if count == 0:
            return RdpCurve.zero(self.values.size)
        fits = self.values <= EXHAUSTED // count
        # A count beyond int64 leaves only zeros that fit, and those may be multiplied by anything.
        product = np.where(fits, self.values, 0) * np.int64(min(count, EXHAUSTED))
        return RdpCurve(np.where(fits, product, EXHAUSTED))

    def nats(self) -> NDArray[np.float64]:
        """Return the curve in nats, for conversion and display.

        Returns:
            (n_orders,) float64, nowhere below the exact value, infinite where the curve is EXHAUSTED.
        """
        nats = self.values.astype(np.float64) * UNIT
        # Above 2^53 units the conversion rounds to nearest, possibly down; the next float is above for certain.
        inexact = self.values > 2**53
        if inexact.any():
            nats[inexact] = np.nextafter(nats[inexact], np.inf)
            nats[self.values == EXHAUSTED] = np.inf
        return nats

    @property
    def is_zero(self) -> bool:
        """Tell whether nothing was released.

        Returns:
            True if every order is 0.
        """
        return not self.values.any()

    def __eq__(self, other: object) -> bool:
        """Compare by value.

        Args:
            other: anything.

        Returns:
            True if `other` is a curve with the same bytes.
        """
        return isinstance(other, RdpCurve) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        """Hash by value.

        Returns:
            The hash of the bytes.
        """
        return hash(self.to_bytes())
