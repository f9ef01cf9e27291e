"""A progress bar by rich or tqdm."""

import sys
from collections.abc import Sized
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

from epsilon_ledger._wire.models import RunState, StepAuthorization
from epsilon_ledger._wire.wording import percent


class _Bar(Protocol):
    def show(self, spent: RunState | StepAuthorization, count: int) -> None: ...

    def close(self) -> None: ...


class Progress:
    """Bar of steps and epsilon by rich or tqdm; silent without them or without a terminal.

    Args:
        name: of the run.
        batches: their number is the total, if known.
        enabled: True: also without a terminal; False: never; None: on a terminal.

    Raises:
        ImportError: it is enabled, and neither library is installed.
    """

    def __init__(self, name: str, batches: object, *, enabled: bool | None) -> None:
        total = len(batches) if isinstance(batches, Sized) else None
        self._bar = (
            None if enabled is False or (enabled is None and not sys.stderr.isatty()) else _create_bar(name, total)
        )
        if enabled and self._bar is None:
            raise ImportError("A progress bar takes rich or tqdm: pip install rich.")

    def __enter__(self) -> Self:
        """Start."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()

    def show(self, spent: RunState | StepAuthorization, count: int) -> None:
        """Show further steps and the epsilon after them."""
        if self._bar is not None:
            self._bar.show(spent, count)


def _create_bar(name: str, total: int | None) -> _Bar | None:
    for library, bar in (("rich.progress", _RichBar), ("tqdm.auto", _TqdmBar)):
        try:
            return bar(import_module(library), name, total)
        except ImportError:
            continue
    return None


def _status_text(spent: RunState | StepAuthorization) -> str:
    return f"epsilon {spent.epsilon:.4g}, {percent(spent.used)} used"


class _RichBar:
    def __init__(self, rich: Any, name: str, total: int | None) -> None:  # noqa: ANN401 - a module
        console = import_module("rich.console").Console(stderr=True)
        words = rich.TextColumn("{task.completed} steps, {task.fields[status]}")
        self._progress = rich.Progress(
            rich.TextColumn("{task.description}"), rich.BarColumn(), words, rich.TimeElapsedColumn(), console=console
        )
        self._task = self._progress.add_task(name, total=total, status="")
        self._progress.start()

    def show(self, spent: RunState | StepAuthorization, count: int) -> None:
        self._progress.update(self._task, advance=count, status=_status_text(spent))

    def close(self) -> None:
        self._progress.stop()


class _TqdmBar:
    def __init__(self, tqdm: Any, name: str, total: int | None) -> None:  # noqa: ANN401 - a module
        self._bar = tqdm.tqdm(desc=name, total=total, unit="step")

    def show(self, spent: RunState | StepAuthorization, count: int) -> None:
        self._bar.set_postfix_str(_status_text(spent), refresh=False)
        self._bar.update(count)

    def close(self) -> None:
        self._bar.close()
