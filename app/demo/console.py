"""Console output of the demo: a progress bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from epsilon_ledger import StepAuthorization

_LINES_OF_PROGRESS = 10

Watch = Callable[[StepAuthorization], None]


class Screen:
    """Output of the demo on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str = "") -> None:
        """Write a line verbatim and unwrapped, so that commands can be copied."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Write a table of names and values."""
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table, markup=False, highlight=False)

    @contextmanager
    def training(self, expected_steps: int) -> Iterator[Watch]:
        """Show the progress of a training; yield a callback for each authorization."""
        if not self._console.is_terminal:
            yield self._lines(max(1, expected_steps // _LINES_OF_PROGRESS))
            return
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps  epsilon {task.fields[epsilon]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("training", total=expected_steps, epsilon="0")

            def advance(authorization: StepAuthorization) -> None:
                progress.update(task, completed=authorization.next_step, epsilon=_spent(authorization))

            yield advance

    def _lines(self, every: int) -> Watch:
        def line(authorization: StepAuthorization) -> None:
            if authorization.next_step % every == 0:
                self.say(f"  {authorization.next_step:>6} steps released, epsilon {_spent(authorization)}")

        return line


def _spent(authorization: StepAuthorization) -> str:
    return f"{authorization.epsilon:.4f} of {authorization.epsilon_limit:g}"
