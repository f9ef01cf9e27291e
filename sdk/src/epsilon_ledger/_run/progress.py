"""A progress bar by rich or tqdm."""

import sys
from collections.abc import Sized
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

from epsilon_ledger._wire.models import Admission


class _Bar(Protocol):
    def show(self, admission: Admission) -> None: ...

    def close(self) -> None: ...


class Progress:
    """Bar of steps and epsilon by rich or tqdm; silent without them or without a terminal.

    Args:
        name: of the run.
        batches: their number is the total, if known.
        wanted: True: also without a terminal; False: never; None: on a terminal.

    Raises:
        ImportError: it is wanted, and neither library is installed.
    """

    def __init__(self, name: str, batches: object, *, wanted: bool | None) -> None:
        total = len(batches) if isinstance(batches, Sized) else None
        self._bar = None if wanted is False or (wanted is None and not sys.stderr.isatty()) else _made(name, total)
        if wanted and self._bar is None:
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

    def show(self, admission: Admission) -> None:
        """Show the state after an admission."""
        if self._bar is not None:
            self._bar.show(admission)


def _made(name: str, total: int | None) -> _Bar | None:
    for library, bar in (("rich.progress", _RichBar), ("tqdm.auto", _TqdmBar)):
        try:
            return bar(import_module(library), name, total)
        except ImportError:
            continue
    return None


def _words(admission: Admission) -> str:
    return f"epsilon {admission.epsilon:.4g} of {admission.epsilon_limit:g}"


class _RichBar:
    def __init__(self, rich: Any, name: str, total: int | None) -> None:  # noqa: ANN401 - a module
        console = import_module("rich.console").Console(stderr=True)
        words = rich.TextColumn("{task.completed} steps, {task.fields[said]}")
        self._progress = rich.Progress(
            rich.TextColumn("{task.description}"), rich.BarColumn(), words, rich.TimeElapsedColumn(), console=console
        )
        self._task = self._progress.add_task(name, total=total, said="")
        self._progress.start()

    def show(self, admission: Admission) -> None:
        self._progress.update(self._task, advance=admission.count, said=_words(admission))

    def close(self) -> None:
        self._progress.stop()


class _TqdmBar:
    def __init__(self, tqdm: Any, name: str, total: int | None) -> None:  # noqa: ANN401 - a module
        self._bar = tqdm.tqdm(desc=name, total=total, unit="step")

    def show(self, admission: Admission) -> None:
        self._bar.set_postfix_str(_words(admission), refresh=False)
        self._bar.update(admission.count)

    def close(self) -> None:
        self._bar.close()
