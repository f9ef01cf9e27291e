"""Checks of a program, and of a step's arguments from call to call."""

from typing import Any

import jax

from epsilon_ledger._jax.errors import UnsupportedTrainingError


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
