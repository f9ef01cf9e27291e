"""Keys of the noise: each call gets one of its own, and its result shows how often it added noise."""

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from epsilon_ledger._jax.errors import UnsupportedTrainingError
from epsilon_ledger._jax.noise import Noise

_OPTAX_STATE: Final = "DifferentiallyPrivateAggregateState"
_JAX_PRIVACY_STATE: Final = ("key", "state of the matrix")
_MOST_STEPS: Final = 1 << 12
"""Noisy steps of a call, up to which they are counted."""
_ON_THEIR_WAY: Final = 8
"""Calls that are checked later."""
_BLOCK: Final = 32
"""Keys that are made at once: one alone takes ten times as long."""

Place = tuple[int, ...]
"""Where a leaf is in a tree: the number of the child at each level."""


@dataclass
class Call:
    """One call of a step.

    Args:
        words: of its fresh key.
        advanced: words of the key that it is to return.
        key: the fresh key.
    """

    words: NDArray[np.uint32]
    advanced: Any
    key: Any
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
        self._places: list[Place] = []
        self._returned: Place | None = None
        self._fresh: list[Call] = []
        self._process = os.getpid()
        self._calls: deque[Call] = deque()
        self._error: str | None = None

    def renew(self, arguments: Any) -> tuple[Any, Call]:  # noqa: ANN401 - a tree
        """Replace the key of the noise among a step's arguments by a fresh one.

        Returns:
            The arguments with the fresh key, and the record of the call.

        Raises:
            UnsupportedTrainingError: there is none, so that each call would add the same noise.
        """
        old: Any = _get(arguments, self._places[0]) if self._places else None
        if not _is_key(old):
            self._places = self._find(arguments)
            old = _get(arguments, self._places[0])
            self._impl = jax.random.key_impl(old) if _is_typed(old) else None
            self._fresh = []
        if not self._fresh or self._process != os.getpid():
            self._process, self._fresh = os.getpid(), self._make_calls(_words(old).size)
        call = self._fresh.pop()
        key, call.key = call.key, None  # it may be donated
        if getattr(old, "committed", False):
            key = jax.device_put(key, old.sharding)
        for number, place in enumerate(self._places):
            # Copies, as each may be donated.
            arguments = _put(arguments, place, jax.numpy.copy(key) if number else key)
        return arguments, call

    def note(self, call: Call, result: Any, arguments: Any) -> None:  # noqa: ANN401 - trees
        """Note the result of a call; the first one is checked before the script sees it.

        Raises:
            UnsupportedTrainingError: the first call took another number of noisy steps than is charged.
        """
        key = None if self._returned is None else _get(result, self._returned)
        if not _is_key(key):
            self._returned = self._find_returned(call, result, arguments)
            return
        call.returned = key
        self._calls.append(call)

    def settle(self, report: Callable[[int], object], *, wait: bool = False) -> None:
        """Check the calls before the last ones, which may be on their way: so the device always has work.

        Args:
            report: charges noisy steps beyond those that were charged.
            wait: whether to wait for the last ones.

        Raises:
            UnsupportedTrainingError: a call took another number of noisy steps than was charged.
        """
        while self._calls and (wait or len(self._calls) > _ON_THEIR_WAY):
            call = self._calls.popleft()
            # On the host: a computation would wait for the step that is on its way.
            if not np.array_equal(_words(call.returned), np.asarray(call.advanced)):
                taken = self._count(call, [call.returned])
                self._error = self._wrong_number(taken)
                if taken is not None and taken > self._steps:
                    report(taken - self._steps)
        if self._error is not None:
            raise UnsupportedTrainingError(self._error)

    def _find(self, arguments: Any) -> list[Place]:  # noqa: ANN401 - a tree
        """Find the key of the noise: by its value, or by the noise's state if that was restored."""
        nodes = list(_walk(arguments))
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
        keys = [(place, node) for place, node in _walk(result) if _words(node).size == call.words.size]
        parts = [2]
        if self._noise.divides_by_batch and not jax.config.jax_threefry_partitionable:
            # The first part then depends on the number of parts, which Optax takes from the number of parameters.
            parts += range(3, len(jax.tree_util.tree_leaves(arguments)) + 2)
        for self._parts in parts:
            wanted = np.asarray(_advance(self._impl, self._parts, self._steps)(call.words))
            for place, key in keys:
                if np.array_equal(_words(key), wanted):
                    self._fresh = []
                    return place
        raise UnsupportedTrainingError(self._wrong_number(self._count(call, [key for _, key in keys])))

    def _make_calls(self, size: int) -> list[Call]:
        """Make the records of some calls, with keys from the operating system's entropy."""
        words = np.frombuffer(os.urandom(4 * size * _BLOCK), np.uint32).reshape(_BLOCK, size)
        advance = _advance(self._impl, self._parts, self._steps)
        return [Call(row, advance(row), key) for row, key in zip(words, _key(words, self._impl), strict=True)]

    def _count(self, call: Call, keys: list[Any]) -> int | None:
        """Count the noisy steps of a call; None: it returned no key of its noise."""
        chain = np.concatenate([call.words[None], _chain(self._impl, self._parts)(call.words)])
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


def _children(tree: Any) -> tuple[list[Any], Any]:  # noqa: ANN401 - a tree
    children, structure = jax.tree_util.tree_flatten(tree, is_leaf=lambda node: node is not tree)
    return children, structure


def _walk(tree: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:  # noqa: ANN401 - a tree and its nodes
    yield place, tree
    children, _ = _children(tree)
    for index, child in enumerate(children):
        if child is not tree:
            yield from _walk(child, (*place, index))


def _get(tree: Any, place: Place) -> Any:  # noqa: ANN401 - a tree and its leaf
    """Return the leaf at a place; None if the tree has no such place any more."""
    for index in place:
        children, _ = _children(tree)
        if index >= len(children):
            return None
        tree = children[index]
    return tree


def _put(tree: Any, place: Place, leaf: Any) -> Any:  # noqa: ANN401 - as above
    """Return a tree with another leaf; nodes that do not lead to it stay the same objects."""
    if not place:
        return leaf
    children, structure = _children(tree)
    children[place[0]] = _put(children[place[0]], place[1:], leaf)
    return jax.tree_util.tree_unflatten(structure, children)


@functools.cache
def _advance(impl: Any, parts: int, steps: int) -> Any:  # noqa: ANN401 - a jitted function
    """Make the function from words to those of the key after some noisy steps."""

    def advance(words: Any) -> Any:  # noqa: ANN401 - an array
        return _data(jax.lax.fori_loop(0, steps, lambda _, key: jax.random.split(key, parts)[0], _key(words, impl)))

    return jax.jit(advance)


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
