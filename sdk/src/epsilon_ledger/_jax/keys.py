"""Keys of the noise: each call gets one of its own, and its result shows how often it added noise."""

import functools
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from epsilon_ledger._jax.errors import UnsupportedTrainingError
from epsilon_ledger._jax.noise import Noise
from epsilon_ledger._jax.trees import Place, get, put, walk

_OPTAX_STATE: Final = "DifferentiallyPrivateAggregateState"
_JAX_PRIVACY_STATE: Final = ("key", "state of the matrix")
_MOST_STEPS: Final = 1 << 12
"""Noisy steps of a call, up to which they are counted."""
_BLOCK: Final = 32
"""Keys that are made, and calls that are checked, by one computation: it costs as much as one for a single key."""
_ON_THEIR_WAY: Final = 8
"""Calls after a block until its check is read: so the device always has work."""

Kind = tuple[Any, Any, Any]
"""Type of an array's elements, its shape, and its sharding if it cannot be elsewhere."""


@dataclass
class Call:
    """One call of a step.

    Args:
        words: of its fresh key.
    """

    words: NDArray[np.uint32]
    returned: Any = None
    """Key that it returned; an array, so that the call may not have ended."""


class NoiseKeys:
    """Gives each call a key for its noise that nobody can repeat, and counts its noisy steps.

    Two releases with one key have the same noise, and their difference has none. So a key that a script has chosen,
    kept, copied or restored never reaches the noise.

    Args:
        noise: of a step.
        steps: noisy steps that a call is charged for.
    """

    def __init__(self, noise: Noise, steps: int) -> None:
        self._noise = noise
        self._steps = steps
        self._parts = 2
        """Into how many keys a step splits its own."""
        self._impl: Any = None
        """Of a typed key; None for plain words."""
        self._size = 0
        """Words of a key."""
        self._old: Kind = (None, None, None)
        """Of the keys that are replaced."""
        self._places: list[Place] = []
        self._returned: Place | None = None
        self._new: Kind = (None, None, None)
        """Of the keys that are returned."""
        self._fresh: list[tuple[NDArray[np.uint32], Any]] = []
        """Words and keys that no call had."""
        self._process = os.getpid()
        self._calls: list[Call] = []
        """Calls that are not checked."""
        self._checks: deque[tuple[list[Call], Any]] = deque()
        """Blocks of calls, and arrays that say which of them returned what they should."""
        self._error: str | None = None

    def renew(self, arguments: Any) -> tuple[Any, Call]:  # noqa: ANN401 - a tree
        """Replace the key of the noise among a step's arguments by a fresh one.

        Returns:
            The arguments with the fresh key, and the record of the call.

        Raises:
            UnsupportedTrainingError: there is none, so that each call would add the same noise.
        """
        old: Any = get(arguments, self._places[0]) if self._places else None
        if not self._places or _kind(old) != self._old:
            if not _is_key(old):
                self._places = self._find(arguments)
                old = get(arguments, self._places[0])
            self._follow(old)
        if not self._fresh or self._process != os.getpid():
            self._process, self._fresh = os.getpid(), self._make_keys()
        if self._calls and _is_deleted(self._calls[-1].returned):
            self._calls[-1].returned = old  # the script has donated it to a function that handed it on
        words, key = self._fresh.pop()
        for number, place in enumerate(self._places):
            # Copies, as each may be donated.
            arguments = put(arguments, place, jax.numpy.copy(key) if number else key)
        return arguments, Call(words)

    def note(self, call: Call, result: Any, arguments: Any) -> None:  # noqa: ANN401 - trees
        """Note the result of a call; the first one is checked before the script sees it.

        Raises:
            UnsupportedTrainingError: the first call took another number of noisy steps than is charged.
        """
        key = None if self._returned is None else get(result, self._returned)
        if self._returned is None or _kind(key) != self._new:
            self._check()
            self._returned = self._find_returned(call, result, arguments)
            self._new = _kind(get(result, self._returned))
            return
        call.returned = key
        self._calls.append(call)
        if len(self._calls) >= _BLOCK:
            self._check()

    def settle(self, report: Callable[[int], object], *, wait: bool = False) -> None:
        """Read the checks of earlier blocks of calls, whose steps have ended or soon will.

        Args:
            report: charges noisy steps beyond those that were charged.
            wait: whether to check all calls, and to wait for them.

        Raises:
            UnsupportedTrainingError: a call took another number of noisy steps than was charged.
        """
        if wait:
            self._check()
        while self._checks and (wait or len(self._checks) > 1 or len(self._calls) >= _ON_THEIR_WAY):
            calls, checked = self._checks.popleft()
            for index in np.flatnonzero(~np.asarray(checked)[: len(calls)]):
                taken = self._count(calls[index].words, [calls[index].returned])
                self._error = self._wrong_number(taken)
                if taken is not None and taken > self._steps:
                    report(taken - self._steps)
        if self._error is not None:
            raise UnsupportedTrainingError(self._error)

    def _check(self) -> None:
        """Begin to check the calls that are not checked, without waiting for them."""
        # The last key may have been donated to the end of the script.
        calls, self._calls = [call for call in self._calls if not _is_deleted(call.returned)], []
        if not calls:
            return
        filled = calls + [calls[-1]] * (_BLOCK - len(calls))  # one shape, so that it is compiled once
        check = _compare(self._impl, self._parts, self._steps)
        checked = check(np.stack([call.words for call in filled]), [call.returned for call in filled])
        self._checks.append((calls, checked))

    def _follow(self, old: Any) -> None:  # noqa: ANN401 - a key
        """Make the next keys like another old one."""
        self._check()  # a block has keys of one kind
        self._old, self._fresh = _kind(old), []
        self._impl = jax.random.key_impl(old) if _is_typed(old) else None
        self._size = jax.eval_shape(jax.random.key_data, old).size if self._impl else old.size

    def _find(self, arguments: Any) -> list[Place]:  # noqa: ANN401 - a tree
        """Find the key of the noise: by its value, or by the noise's state if that was restored."""
        nodes = list(walk(arguments))
        first = _words(self._noise.key)
        found = [place for place, node in nodes if first.size and np.array_equal(_words(node), first)]
        if not found:
            # The tuple of positional arguments, at a depth of 1, is no state of the noise.
            states = [place for place, node in nodes if len(place) > 1 and _is_state(node)]
            found = [(*place, 0) for place in states] if len(states) == 1 else []
        if not found:
            raise UnsupportedTrainingError(
                "No argument of this step is the PRNG key of its noise. A state that is closed over, or made by init "
                "in the step, adds the same noise at each call, and the difference of two releases has none. Make the "
                "state with the init of noise=..., hand it to the step, and return the one that update returned."
            )
        return found

    def _find_returned(self, call: Call, result: Any, arguments: Any) -> Place:  # noqa: ANN401 - trees
        """Find the key that has advanced as often as is charged."""
        keys = [(place, node) for place, node in walk(result) if _words(node).size == call.words.size]
        parts = [2]
        if self._noise.divides_by_batch and not jax.config.jax_threefry_partitionable:
            # The first part then depends on the number of parts, which Optax takes from the number of parameters.
            parts += range(3, len(jax.tree_util.tree_leaves(arguments)) + 2)
        for self._parts in parts:
            wanted = np.asarray(_advance(self._impl, self._parts, self._steps)(call.words))
            for place, key in keys:
                if np.array_equal(_words(key), wanted):
                    return place
        raise UnsupportedTrainingError(self._wrong_number(self._count(call.words, [key for _, key in keys])))

    def _make_keys(self) -> list[tuple[NDArray[np.uint32], Any]]:
        """Make keys from the operating system's entropy, and return them with their words."""
        words = np.frombuffer(os.urandom(4 * self._size * _BLOCK), np.uint32).reshape(_BLOCK, self._size)
        keys = _keys(self._impl)(words)
        *_, sharding = self._old
        if sharding is not None:
            keys = jax.device_put(keys, sharding)
        return list(zip(words, keys, strict=True))

    def _count(self, words: NDArray[np.uint32], keys: list[Any]) -> int | None:
        """Count the noisy steps of a call; None: it returned no key of its noise."""
        chain = np.concatenate([words[None], _chain(self._impl, self._parts)(words)])
        found = [np.flatnonzero((chain == _words(key)).all(axis=1)) for key in keys]
        return max((int(places[0]) for places in found if places.size), default=None)

    def _wrong_number(self, taken: int | None) -> str:
        if not taken:
            return (
                "This step does not return the state of its noise as update returned it, so that nothing shows how "
                "often it added noise. Return that state, once for each call. Release nothing of this training."
            )
        return (
            f"A call took {taken} noisy steps, as the key of its noise shows, and steps_per_call={self._steps} were "
            f"charged. Give steps_per_call={taken}, and draw as many batches for each call. Release nothing of this "
            f"training."
        )


def _is_typed(leaf: Any) -> bool:  # noqa: ANN401 - any leaf of a tree
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_key(leaf: Any) -> bool:  # noqa: ANN401 - as above
    """Return whether a leaf is one PRNG key, typed or as words; restored words may be numpy's."""
    if _is_typed(leaf):
        return bool(leaf.ndim == 0)
    return isinstance(leaf, jax.Array | np.ndarray) and leaf.dtype == np.uint32 and leaf.shape in {(2,), (4,)}


def _is_deleted(leaf: Any) -> bool:  # noqa: ANN401 - as above
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _kind(leaf: Any) -> Kind:  # noqa: ANN401 - as above
    """Return the type of an array's elements, its shape, and its sharding if it cannot be elsewhere."""
    sharding = leaf.sharding if getattr(leaf, "committed", False) else None
    return getattr(leaf, "dtype", None), getattr(leaf, "shape", None), sharding


def _is_state(node: Any) -> bool:  # noqa: ANN401 - as above
    """Return whether a node is the state of Optax's noise, or like the one of jax-privacy's: a key and a state."""
    if type(node).__name__ == _OPTAX_STATE:
        return _is_key(node[0])
    return type(node) is tuple and len(node) == len(_JAX_PRIVACY_STATE) and _is_key(node[0])


def _words(leaf: Any) -> NDArray[np.uint32]:  # noqa: ANN401 - as above
    """Return the words of a PRNG key, or nothing."""
    if not _is_key(leaf):
        return np.empty(0, np.uint32)
    return np.asarray(jax.random.key_data(leaf) if _is_typed(leaf) else leaf)


@functools.cache
def _advance(impl: Any, parts: int, steps: int) -> Any:  # noqa: ANN401 - a jitted function
    """Make the function from words to those of the key after some noisy steps."""

    def advance(words: Any) -> Any:  # noqa: ANN401 - an array
        return _data(jax.lax.fori_loop(0, steps, lambda _, key: jax.random.split(key, parts)[0], _key(words, impl)))

    return jax.jit(advance)


@functools.cache
def _compare(impl: Any, parts: int, steps: int) -> Any:  # noqa: ANN401 - as above
    """Make the function from the words of a block, and the keys that were returned, to which of them are right."""
    advance = _advance(impl, parts, steps)

    def compare(words: Any, returned: list[Any]) -> Any:  # noqa: ANN401 - arrays
        return (jax.vmap(advance)(words) == jax.numpy.stack([_data(key) for key in returned])).all(axis=1)

    return jax.jit(compare)


@functools.cache
def _keys(impl: Any) -> Any:  # noqa: ANN401 - as above
    """Make the function from the words of a block to its keys; each has its own memory, as it may be donated."""
    return jax.jit(lambda words: [_key(each, impl) for each in words])


@functools.cache
def _chain(impl: Any, parts: int) -> Any:  # noqa: ANN401 - as above
    """Make the function from words to those of the keys after each further noisy step."""

    def advance(key: Any, _: None) -> tuple[Any, Any]:  # noqa: ANN401 - arrays
        key = jax.random.split(key, parts)[0]
        return key, _data(key)

    return jax.jit(lambda words: jax.lax.scan(advance, _key(words, impl), length=_MOST_STEPS)[1])


def _key(words: Any, impl: Any) -> Any:  # noqa: ANN401 - arrays
    return jax.numpy.asarray(words) if impl is None else jax.random.wrap_key_data(words, impl=impl)


def _data(key: Any) -> Any:  # noqa: ANN401 - arrays
    return jax.random.key_data(key) if jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key) else key
