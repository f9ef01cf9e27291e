"""Callbacks of a training with MindArmour's model."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RunContext:
    """What a callback of a training learns.

    Args:
        **params: of the step.
    """

    def __init__(self, **params: Any) -> None:  # noqa: ANN401 - of any kind
        self._params = SimpleNamespace(**params)
        self._stop = False

    def original_args(self) -> SimpleNamespace:
        """Return cur_step_num, cur_epoch_num, batch_num, epoch_num, network and optimizer.

        There is no loss: that of a batch is private, and printing it would be a release without noise.
        """
        return self._params

    def request_stop(self) -> None:
        """End the training after this step."""
        self._stop = True

    def get_stop_requested(self) -> bool:
        """Whether a callback has asked to end the training."""
        return self._stop


def step_end(listener: Any) -> Callable[[RunContext], object]:  # noqa: ANN401 - a callback
    """Return what a callback does after each step.

    Raises:
        TypeError: it does nothing.
    """
    found: Callable[[RunContext], object] | None = getattr(listener, "on_train_step_end", None) or getattr(
        listener, "step_end", None
    )
    if found is None:
        raise TypeError(f"A callback must have step_end(run_context), but {listener!r} has none.")
    return found
