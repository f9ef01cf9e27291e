"""Noise values per second, secure and seeded: `python -m benchmarks.secure_noise` (about five seconds).

One core; numpy's own normals from PCG64 are the baseline. Secure values come from a ChaCha20 keystream under fresh keys
of the operating system; each normal value is the sum of four. A release is the whole of `GaussianNoise.release`: sum
and noise on a lattice, without a ledger.
"""

import os
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from epsilon_ledger.mechanisms import GaussianNoise, PoissonSampler, Unmetered
from epsilon_ledger.mechanisms.randomness import SecureRandomness, SeededRandomness

VALUES = 1 << 20
ROUNDS = 15
NOBODY = Unmetered("a benchmark")


def contenders() -> dict[str, Callable[[], object]]:
    """Return the benchmarks by name; each generates `VALUES` values."""
    generator = np.random.Generator(np.random.PCG64(1))
    secure, seeded = SecureRandomness(), SeededRandomness(1)
    noise, seeded_noise = GaussianNoise(1.1, clipping_norm=1.0), GaussianNoise(1.1, clipping_norm=1.0, insecure_seed=1)
    total = np.zeros(VALUES)
    coins = PoissonSampler(VALUES, 0.01)
    return {
        "numpy PCG64 standard_normal": lambda: generator.standard_normal(VALUES),
        "secure normals": lambda: secure.normals(VALUES),
        "seeded normals": lambda: seeded.normals(VALUES),
        "secure Laplace": lambda: secure.laplaces(VALUES),
        "seeded Laplace": lambda: seeded.laplaces(VALUES),
        "GaussianNoise.release, secure": lambda: noise.release(total, run=NOBODY),
        "GaussianNoise.release, seeded": lambda: seeded_noise.release(total, run=NOBODY),
        "PoissonSampler, secure coins": coins.sample,
        "keystream, words of 64 bits": lambda: secure.words(VALUES),
        "os.urandom, words of 64 bits": lambda: os.urandom(8 * VALUES),
    }


def main() -> None:
    """Print millions of values per second, medians of interleaved rounds, and ratios to the baseline."""
    timed = contenders()
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(ROUNDS + 1):
        for name, make in timed.items():
            start = perf_counter()
            make()
            if number:  # the first round warms up
                taken[name].append(perf_counter() - start)
    floor = median(next(iter(taken.values())))
    # numpy's tangents and logarithms are several times faster where it finds AVX-512.
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    print(
        f"{VALUES:,} values, median of {ROUNDS}; numpy {np.__version__}, {platform.machine()} with {', '.join(found)}"
    )
    print(f"{'':<32}{'million/s':>10}{'of PCG64':>10}{'slowest':>10}")
    for name, seconds in taken.items():
        middle = median(seconds)
        rates = VALUES / middle / 1e6, floor / middle, VALUES / max(seconds) / 1e6
        print(f"{name:<32}{rates[0]:>10.1f}{rates[1]:>9.2f}x{rates[2]:>10.1f}")


if __name__ == "__main__":
    main()
