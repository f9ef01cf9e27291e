"""The secure bits, and what they are turned into, value by value."""

import copy
import math
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from multiprocessing.pool import Pool
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilon_ledger.mechanisms.randomness import (
    BLOCK,
    SecureRandomness,
    keystream,
    laplaces_from,
    normals_from,
    randomness,
)

# RFC 8439, appendix A.1, test vector 1: key, nonce and counter are zero.
ZERO_KEYSTREAM = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
EDGES = [0, 1, 2, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2**11, 2**64 - 1]

words64 = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF


def chacha20_block(key: bytes, counter: int) -> bytes:
    """Section 2.3 of RFC 8439, with a nonce of zeros."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
    state = start.copy()
    for _ in range(10):
        for a, b, c, d in [
            *[(column, column + 4, column + 8, column + 12) for column in range(4)],
            *[(column, (column + 1) % 4 + 4, (column + 2) % 4 + 8, (column + 3) % 4 + 12) for column in range(4)],
        ]:
            for one, two, three, bits in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)]:
                state[one] = (state[one] + state[two]) & 0xFFFFFFFF
                state[three] = _rotated(state[three] ^ state[one], bits)
    return struct.pack("<16I", *((one + two) & 0xFFFFFFFF for one, two in zip(start, state, strict=True)))


def test_keystream_is_chacha20_with_256_bits_of_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chacha20_block(bytes(32), 0) == ZERO_KEYSTREAM
    key, keys, real = bytes(range(32)), list[bytes](), os.urandom

    def urandom(count: int) -> bytes:
        keys.append(real(count) if keys else key[:count])
        return keys[-1]

    monkeypatch.setattr(os, "urandom", urandom)
    found = keystream((2, 4, 4))
    assert (found.shape, keys) == ((2, 4, 4), [key])
    assert found.tobytes() == b"".join(chacha20_block(key, counter) for counter in range(4))
    # Each block of noise has its own key.
    SecureRandomness().normals(6 * BLOCK + 1)
    SecureRandomness().laplaces(4 * BLOCK + 1)
    assert [len(key) for key in keys[1:]] == [32] * 7
    assert len(set(keys)) == 8


def polar(pairs: list[tuple[int, int]]) -> list[tuple[float, float]]:
    """The logarithm of a uniform number, and an angle, of each pair of words."""
    return [
        (math.log((radius + 0.5) / 2**64), 2 * math.pi * ((angle + 2**63) % 2**64 - 2**63) / 2**64)
        for radius, angle in pairs
    ]


@given(st.lists(st.tuples(words64, words64), min_size=4, max_size=4))
def test_values_are_sums_by_box_and_muller(pairs: list[tuple[int, int]]) -> None:
    """A normal value is half the sum of four, a Laplace value of two exponentials, each times a cosine."""
    words = np.array(pairs, dtype=np.uint64).T.reshape(2, 4, 1)
    cosines = sum(math.sqrt(-2 * log) * math.cos(turned) / 2 for log, turned in polar(pairs))
    sines = sum(math.sqrt(-2 * log) * math.sin(turned) / 2 for log, turned in polar(pairs))
    assert normals_from(words)[:, 0] == pytest.approx([cosines, sines], rel=0, abs=1e-13)
    expected = sum(log * math.cos(turned) for log, turned in polar(pairs[:2]))
    assert laplaces_from(words[:, :2])[0] == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("seed", [None, 5])
def test_random_values_are_as_many_as_asked_for_and_differ(seed: int | None) -> None:
    source = randomness(seed)
    for count in (0, 1, 2, 3, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1):
        for values in (source.normals(count), source.laplaces(count)):
            assert (values.size, values.dtype.type) == (count, np.float64)
            assert np.unique(values).size == count
        words = source.words(count)
        assert (words.size, words.dtype.type) == (count, np.uint64)


def _drawn(source: SecureRandomness) -> bytes:
    return source.normals(8).tobytes() + source.laplaces(8).tobytes() + source.words(8).tobytes()


SOURCE = SecureRandomness()


def _drawn_by_worker(_: int) -> bytes:
    return _drawn(SOURCE)


def test_copies_pickles_and_threads_draw_other_numbers() -> None:
    source = SecureRandomness()
    start = threading.Barrier(8)

    def draw(_: int) -> list[bytes]:
        start.wait(10)
        return [_drawn(source) for _ in range(20)]

    with ThreadPoolExecutor(8) as threads:
        drawn = [part for parts in threads.map(draw, range(8)) for part in parts]
    others = (copy.copy(source), copy.deepcopy(source), pickle.loads(pickle.dumps(source)), source)  # noqa: S301
    drawn.extend(map(_drawn, others))
    pieces = [part[start : start + 64] for part in drawn for start in range(0, len(part), 64)]
    assert len(set(pieces)) == len(pieces) == 164 * 3


def _forked(draw: Callable[[], bytes]) -> bytes:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, draw())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    return drawn


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_processes_draw_other_numbers() -> None:
    _drawn(SOURCE)
    drawn = [_forked(lambda: _drawn(SOURCE)) for _ in range(2)]
    with Pool(2) as pool:
        drawn += pool.map(_drawn_by_worker, range(4))
    drawn.append(_drawn(SOURCE))
    assert {len(part) for part in drawn} == {192}
    assert len({part[:64] for part in drawn}) == len({part[128:] for part in drawn}) == 7


def test_seed_gives_same_numbers_again_and_says_that_it_is_not_secure() -> None:
    one, two, other = randomness(7), randomness(np.random.default_rng(7)), randomness(8)
    assert not one.secure
    assert randomness(None).secure
    for name in ("normals", "laplaces", "words"):
        drawn = [getattr(source, name)(5).tobytes() for source in (one, two, other)]
        assert drawn[0] == drawn[1] != drawn[2]
    wrong: list[Any] = [True, -1, 1.5, "1", float("nan")]
    for seed in wrong:
        with pytest.raises(ValueError, match=r"insecure_seed is .* but it must be a whole number"):
            randomness(seed)


@pytest.mark.parametrize("missing", ["numpy", "cryptography"])
def test_client_imports_no_numpy_and_mechanisms_name_what_to_install(missing: str) -> None:
    program = f"""
import sys
import epsilon_ledger
print("numpy" in sys.modules, "epsilon_ledger.mechanisms" in sys.modules)
sys.modules[{missing!r}] = None
try:
    import epsilon_ledger.mechanisms
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    imported, said = done.stdout.split("\n", 1)
    assert imported == "False False"
    assert said.startswith(f"epsilon_ledger.mechanisms needs {missing}")
    assert "pip install 'epsilon-ledger-client[numpy]'" in said


@pytest.mark.parametrize("width", [1, 64])  # numpy computes few and many values by different instructions
def test_no_bits_give_infinite_value(width: int) -> None:
    words = np.empty((2, 4, width), dtype=np.uint64)
    for words[0], words[1] in product(EDGES, EDGES):
        normals, laplaces = normals_from(words), laplaces_from(words[:, :2])
        assert np.abs(normals).max() < 19
        assert np.abs(laplaces).max() < 91
