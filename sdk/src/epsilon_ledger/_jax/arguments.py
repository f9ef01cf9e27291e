"""Checks of a program, and of a step's arguments from call to call."""

from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np

from epsilon_ledger._jax.errors import UnsupportedTrainingError

_GUESSABLE: Final = 1 << 20
"""Seeds below are chosen by somebody: one in 2,000 of jax-privacy's random seeds is."""


def require_one_process() -> None:
    """Require that this program is one process.

    Raises:
        UnsupportedTrainingError: it is one of several.
    """
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        raise UnsupportedTrainingError(
            f"This is process {jax.process_index()} of {jax.process_count()}, of which each would ask for itself. "
            f"Train in one process, with all its devices."
        )


class KeyWatch:
    """Watch of the noise's key among a step's arguments.

    Two releases with one key have the same noise, and their difference has none.

    Args:
        key: with which the noise's state begins.
        resumed: whether the run has steps from before.
    """

    def __init__(self, key: Any, *, resumed: bool) -> None:  # noqa: ANN401 - a key of JAX
        self._first = _words(key)
        self._resumed = resumed
        self._paths: list[tuple[Any, ...]] | None = None
        self.last: list[Any] = []
        """Keys of the last release."""

    def check(self, arguments: Any) -> list[Any]:  # noqa: ANN401 - a tree
        """Check that the key has moved on since the last release.

        Args:
            arguments: of the step.

        Returns:
            Their keys, to be kept as `last` if the step is taken.

        Raises:
            UnsupportedTrainingError: the key is the one of the last call, or that of another process.
        """
        if self._paths is None:
            self._paths = self._find(arguments)
        keys = [_follow(arguments, path) for path in self._paths]
        if any(key is last for key, last in zip(keys, self.last, strict=False)):
            raise UnsupportedTrainingError(
                "This step has the PRNG key of the step before, so that both would add the same noise, and their "
                "difference none. Hand the state on that the step returned: its noise state, or the optimizer's."
            )
        return keys

    def _find(self, arguments: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - a tree
        if not self._first.size:
            return []
        leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
        paths = [path for path, leaf in leaves if np.array_equal(_words(leaf), self._first)]
        if paths and self._resumed and not self._first[:-1].any() and self._first[-1] < _GUESSABLE:
            raise UnsupportedTrainingError(
                f"The run has steps from before, and the noise begins with the seed {self._first[-1]}: if they did, "
                f"too, it would be the same noise. Make a key with epsilon_ledger.jax.secret_key() in each process."
            )
        return [path for path in paths if _can_follow(path)]


class ShapeWatch:
    """Watch of the shapes of a step's arguments."""

    def __init__(self) -> None:
        self._first: list[Any] | None = None

    def check(self, arguments: Any) -> None:  # noqa: ANN401 - a tree
        """Check that all shapes are those of the first call.

        Raises:
            UnsupportedTrainingError: they differ.
        """
        shapes = [getattr(leaf, "shape", None) for leaf in jax.tree_util.tree_leaves(arguments)]
        if self._first is None:
            self._first = shapes
        elif shapes != self._first:
            raise UnsupportedTrainingError(
                "The shape of an argument has changed, probably that of the batch. Optax divides the noise by the "
                "number of examples, which is private in a Poisson sample, and shows in the noise of each parameter. "
                "Pad each sample to one size that none exceeds, and multiply the padding's loss by zero."
            )


def _words(leaf: Any) -> Any:  # noqa: ANN401 - any leaf of a tree
    """Return the words of a PRNG key, or nothing."""
    if not isinstance(leaf, jax.Array):
        return np.empty(0, np.uint32)
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf) if leaf.dtype == np.uint32 and leaf.ndim == 1 else np.empty(0, np.uint32)


_STEPS: Final[dict[type, Callable[[Any, Any], Any]]] = {
    jax.tree_util.SequenceKey: lambda tree, step: tree[step.idx],
    jax.tree_util.DictKey: lambda tree, step: tree[step.key],
    jax.tree_util.GetAttrKey: lambda tree, step: getattr(tree, step.name),
}


def _can_follow(path: tuple[Any, ...]) -> bool:
    return all(type(step) in _STEPS for step in path)


def _follow(tree: Any, path: tuple[Any, ...]) -> Any:  # noqa: ANN401 - a tree and its leaf
    for step in path:
        tree = _STEPS[type(step)](tree, step)
    return tree
