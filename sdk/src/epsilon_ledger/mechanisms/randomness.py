"""Random numbers from the operating system's entropy through ChaCha20, or from a seed in tests.

Secure numbers have no state between calls. Every block of keystream has its own 256-bit key from the operating system,
forgotten with the block. No fork, copy, pickle, checkpoint or thread can therefore repeat a stream.

Claimed: an adversary who cannot distinguish ChaCha20 from random bits, and cannot read this process's memory, cannot
predict the numbers. Not claimed: that they are exactly Gaussian. They are floats, bounded by 19 standard deviations
(18.98; Laplace: by 91 scales), which an exact sample exceeds with a probability below 1e-78 (1e-39).
"""

import os
from math import pi
from typing import Final, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from epsilon_ledger.mechanisms.checks import whole

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

BLOCK: Final = 1 << 12
"""Columns of a block, whose working arrays fit into a core's L2 cache."""

_UNIT: Final = 2.0**-64


class Randomness(Protocol):
    """A source of random numbers."""

    @property
    def secure(self) -> bool:
        """Whether the numbers are unpredictable."""
        ...

    @property
    def generator(self) -> np.random.Generator | None:
        """The seeded generator, for sharing its stream, or None."""
        ...

    def words(self, count: int) -> Words:
        """Return (count,) uniform 64-bit integers."""
        ...

    def normals(self, count: int) -> Floats:
        """Return (count,) independent standard normal values."""
        ...

    def laplaces(self, count: int) -> Floats:
        """Return (count,) independent Laplace values of scale 1."""
        ...


def keystream(shape: tuple[int, ...]) -> Words:
    """Return uniform 64-bit integers from ChaCha20 under a fresh, single-use key.

    Args:
        shape: of the result; at most 2^35 words, half of the cipher's block counter.

    Source:
        Nir, Langley 2018 (RFC 8439). The nonce may be constant because no key is used twice.
    """
    words = np.empty(shape, dtype=np.uint64)
    assert words.size <= 1 << 35, "the block counter of a key would wrap"
    cipher = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None)
    cipher.encryptor().update_into(bytes(words.nbytes), words.reshape(-1).view(np.uint8).data)
    return words


def normals_from(words: Words) -> Floats:
    """Transform random bits into normal values, each the sum of four normals over two.

    By Box and Muller's transform, uniform u and angle give the independent normals r cos(angle) and r sin(angle), r =
    sqrt(-2 ln u). Four pairs give a sum of cosines and a sum of sines, two values from eight uniforms of 64 bits.
    Unlike rejection (ziggurat, polar coordinates), every step takes constant time. u is at least 2^-65, so the
    logarithm is finite.

    With t = tan(angle / 2), cos = (1 - t^2) / (1 + t^2) and sin = 2 t / (1 + t^2): numpy computes tangents several
    times faster than sines and cosines. At the ends t is 1.6e16, which is finite, too.

    Args:
        words: (2, 4, n) uniform 64-bit integers.

    Returns:
        (2, n) independent standard normal values.

    Source:
        Box, Muller 1958; Holohan, Braghin 2021 (arXiv 2107.10138) for the sum of 2 n Gaussians; here n = 2.
    """
    radius = _log_uniform(words[0])
    radius *= -0.5  # r / 2, whose half is the division of the sum by two
    np.sqrt(radius, out=radius)
    tangent = _half_tangent(words[1])
    square = tangent * tangent
    cosine = 1.0 - square
    square += 1.0
    radius /= square
    cosine *= radius
    tangent *= radius
    values = np.empty((2, words.shape[2]))
    np.add.reduce(cosine, axis=0, out=values[0])
    np.add.reduce(tangent, axis=0, out=values[1])
    values[1] *= 2.0
    return values


def laplaces_from(words: Words) -> Floats:
    """Transform random bits into Laplace values, each from four uniforms.

    E cos(angle), with E exponential and a uniform angle, is the difference of two independent gamma variables of shape
    1/2, and the sum of two of those is Laplace: their characteristic function is (1 + s^2)^(-1/2) each.

    Args:
        words: (2, 2, n) uniform 64-bit integers.

    Returns:
        (n,) independent Laplace values of scale 1.

    Source:
        Holohan, Braghin 2021 (arXiv 2107.10138): Laplace is infinitely divisible, into differences of gamma variables;
        here n = 2.
    """
    exponential = _log_uniform(words[0])  # its sign does not matter: the cosine is symmetric
    square = _half_tangent(words[1])
    square *= square
    exponential *= 1.0 - square
    square += 1.0
    exponential /= square
    values = np.empty(words.shape[2])
    np.add(exponential[0], exponential[1], out=values)
    return values


class SecureRandomness:
    """Unpredictable numbers without state, so that copies and forks share nothing."""

    __slots__ = ()

    @property
    def secure(self) -> bool:
        """True."""
        return True

    @property
    def generator(self) -> None:
        """None."""
        return

    def words(self, count: int) -> Words:
        """Return (count,) uniform 64-bit integers."""
        return keystream((count,))

    def normals(self, count: int) -> Floats:
        """Return (count,) independent standard normal values."""
        values = np.empty(count)
        for start in range(0, count, 2 * BLOCK):
            block = values[start : start + 2 * BLOCK]
            half = (block.size + 1) // 2
            cosines, sines = normals_from(keystream((2, 4, half)))
            block[:half] = cosines
            block[half:] = sines[: block.size - half]
        return values

    def laplaces(self, count: int) -> Floats:
        """Return (count,) independent Laplace values of scale 1."""
        values = np.empty(count)
        for start in range(0, count, 2 * BLOCK):
            block = values[start : start + 2 * BLOCK]
            block[:] = laplaces_from(keystream((2, 2, block.size)))
        return values


class SeededRandomness:
    """Reproducible numbers for tests; the seed allows to remove the noise.

    Args:
        seed: of numpy's default generator, or a generator.
    """

    __slots__ = ("_generator",)

    def __init__(self, seed: int | np.random.Generator) -> None:
        self._generator = np.random.default_rng(seed)

    @property
    def secure(self) -> bool:
        """False."""
        return False

    @property
    def generator(self) -> np.random.Generator:
        """The seeded generator."""
        return self._generator

    def words(self, count: int) -> Words:
        """Return (count,) uniform 64-bit integers."""
        return self._generator.integers(0, 1 << 64, size=count, dtype=np.uint64)

    def normals(self, count: int) -> Floats:
        """Return (count,) independent standard normal values."""
        return self._generator.standard_normal(count)

    def laplaces(self, count: int) -> Floats:
        """Return (count,) independent Laplace values of scale 1."""
        return self._generator.laplace(size=count)


def randomness(insecure_seed: int | np.random.Generator | None) -> Randomness:
    """Return the secure source, or a seeded one if a seed is given.

    Raises:
        ValueError: the seed is neither None, an integer from 0, nor a numpy Generator.
    """
    if insecure_seed is None:
        return SecureRandomness()
    if isinstance(insecure_seed, np.random.Generator):
        return SeededRandomness(insecure_seed)
    return SeededRandomness(whole("insecure_seed", insecure_seed, 0, 1 << 128, "a seed for tests, or None"))


def _log_uniform(words: Words) -> Floats:
    """Return logarithms of uniform numbers in [2^-65, 1]."""
    uniform = np.multiply(words, _UNIT, dtype=np.float64)
    uniform += _UNIT / 2
    np.log(uniform, out=uniform)
    return uniform


def _half_tangent(words: Words) -> Floats:
    """Return tangents of half a uniform angle in [-pi, pi]."""
    half = np.multiply(words.view(np.int64), pi * _UNIT, dtype=np.float64)
    np.tan(half, out=half)
    return half
