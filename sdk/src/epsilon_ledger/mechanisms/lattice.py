"""Sums without rounding: values and noise are integer multiples of one spacing, which floats add exactly.

Plain floating point leaks data regardless of the noise: the last bits of `sum + noise` depend on the size of the sum
(Haney et al. 2022, arXiv 2207.13793), and rounding enlarges the sensitivity of a sum, depending on the order of the
summands (Casacuberta et al. 2022, arXiv 2207.10635). Here every summand is rounded to a multiple of a power of two
before it is added, and so is the noise. All sums are sums of integers below 2^53: exact, in any order. The noisy sum
equals the rounded "true sum plus real-valued noise", and rounding is post-processing.

The rounding moves each coordinate by up to half a spacing, which the scale of the noise includes. The spacing is at
most 2^-28 of the norm, or of the noise's scale if that is larger. Noise on a vector of d coordinates with noise
multiplier z is therefore larger than stated by at most sqrt(d) max(1, z) 2^-28 of itself: 4e-6 at d = 1e6 and z = 1,
4e-4 at z = 100. At d = 1e6 and z = 1e6 the noise is 2.95 times as stated.

Not claimed: that the noise before its rounding is exactly Gaussian or Laplace. Its logarithms and tangents are correct
to a few units of the last of 53 bits; the probability of a multiple is off by up to about a millionth of itself.
Mironov's snapping (2012), which is for the Laplace distribution only, is not done.
"""

from dataclasses import dataclass
from math import frexp, ldexp
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FINENESS: Final = 28
"""Kept binary digits of the norm, or of the noise's scale if that is larger."""

LARGEST: Final = 2.0**52
"""Limit of multiples, which keeps noisy values exact integers in a float."""

MAX_SUMMANDS: Final = 1 << 22
"""Maximum number of clipped summands, of at most 2^29 multiples each, with an exact sum."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """All integer multiples of a spacing, which is a power of two."""

    spacing: float

    @classmethod
    def for_scales(cls, *scales: float) -> Self:
        """Build the lattice for values and noise of these public scales, above 0.

        Its spacing is the power of two at or below 2^-28 of the largest.
        """
        _, exponent = frexp(max(scales))
        return cls(ldexp(1.0, exponent - 1 - FINENESS))

    def multiples(self, values: Floats) -> Floats:
        """Round finite values to integers, limited to 2^52, which never increases a distance."""
        limit = LARGEST * self.spacing
        found = np.clip(values, -limit, limit)
        found /= self.spacing
        return np.rint(found, out=found)

    def add(self, multiples: Floats, noise: Floats, scale: float) -> Floats:
        """Add noise to values on the lattice, exactly.

        Args:
            multiples: integers, any shape.
            noise: of scale 1, of the same shape; overwritten with the result.
            scale: of the added noise.
        """
        noise *= scale / self.spacing
        np.rint(noise, out=noise)
        noise += multiples
        noise *= self.spacing
        return noise
