"""Sums without rounding: values and noise are whole multiples of one spacing, and floats add those exactly.

In plain floating point two things betray the data however good the noise is: the last bits of `sum + noise` depend on
the size of the sum (Haney et al. 2022, arXiv 2207.13793), and rounding makes the sensitivity of a sum larger than its
formula says, dependent on the order of the summands (Casacuberta et al. 2022, arXiv 2207.10635). Here every summand is
rounded to a multiple of a power of two before it is added, and so is the noise. All sums are then sums of integers
below 2^53: exact, in any order. The noisy sum is what rounding "true sum plus real-valued noise" would give, and
rounding is post-processing.

The rounding moves each coordinate by up to half a spacing. Noise is scaled to the sensitivity with that included. The
spacing is at most 2^-28 of the norm, or of the noise's scale if that is larger. So noise on a vector of d coordinates
with noise multiplier z is larger than stated by at most sqrt(d) max(1, z) 2^-28 of itself: 4e-6 at d = 1e6 and z = 1,
4e-4 at z = 100. It becomes large only where z is: at d = 1e6 and z = 1e6 the noise is 2.95 times as stated.

Not claimed: that the noise before its rounding is exactly Gaussian or Laplace. Its logarithms and tangents are correct
to a few units of the last of 53 bits; a multiple has a chance that is off by up to about a millionth of itself.
Mironov's snapping (2012) is not done; it is for the Laplace distribution only.
"""

from dataclasses import dataclass
from math import frexp, ldexp
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FINENESS: Final = 28
"""Binary digits of the norm, or of the noise's scale if that is larger, that are kept."""

LARGEST: Final = 2.0**52
"""Multiples to which values are limited: with noise on them, they stay whole numbers that a float can hold."""

MAX_SUMMANDS: Final = 1 << 22
"""So many clipped summands of at most 2^29 multiples each can be summed up exactly."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """All whole multiples of a spacing.

    Args:
        spacing: a power of two.
    """

    spacing: float

    @classmethod
    def for_scales(cls, *scales: float) -> Self:
        """Return the lattice for values and noise of these scales.

        Args:
            scales: norm or sensitivity of a value, and the noise's scale; above 0, public.

        Returns:
            The lattice whose spacing is the power of two at or below 2^-28 of the largest of them.
        """
        _, exponent = frexp(max(scales))
        return cls(ldexp(1.0, exponent - 1 - FINENESS))

    def multiples(self, values: Floats) -> Floats:
        """Round values to the lattice; they are limited to 2^52 multiples, which brings no two of them further apart.

        Args:
            values: any shape, finite.

        Returns:
            Whole numbers, of the same shape.
        """
        limit = LARGEST * self.spacing
        found = np.clip(values, -limit, limit)
        found /= self.spacing
        return np.rint(found, out=found)

    def add(self, multiples: Floats, noise: Floats, scale: float) -> Floats:
        """Add noise to values on the lattice, exactly.

        Args:
            multiples: whole numbers, any shape.
            noise: of scale 1, of the same shape; it is overwritten.
            scale: of the noise that is added.

        Returns:
            The noisy values, in the place of `noise`.
        """
        noise *= scale / self.spacing
        np.rint(noise, out=noise)
        noise += multiples
        noise *= self.spacing
        return noise
