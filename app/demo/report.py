"""Console output of the demo, and its facts: checked, shown, and kept for inspection."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.demo import DemoError
from app.demo.server_process import DemoFolder
from app.demo.training import Patients, TrainingResult, accuracy, accuracy_without_privacy
from epsilon_ledger import BudgetExceededError, RunHistory, RunState, StepAuthorization

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
    return f"{authorization.epsilon:.4f}, {authorization.used:.1%} used"


@dataclass(frozen=True, slots=True)
class Facts:
    """Results of the demo, each from its authoritative source: the trainer, the ledger, or `epsilon-ledger verify`.

    `steps_by_plan` are those that a budget without a plan would have refused. Accuracies are those of the test records,
    in [0, 1].
    """

    run: str
    run_status: str
    steps_released: int
    steps_admitted: int
    steps_by_plan: int
    refusals: int
    epsilon: float
    delta: float
    used: float
    accuracy: float
    accuracy_without_privacy: float
    refused_by: str
    max_steps_that_fit: int
    noise_for_the_rest: float | None
    exhausted: bool
    verification: Mapping[str, object]
    database_url: str
    seconds: float


def gather(  # noqa: PLR0913 - facts by name
    *,
    state: RunState,
    history: RunHistory,
    trained: TrainingResult,
    without_plan: int,
    patients: Patients,
    verification: Mapping[str, object],
    database_url: str,
    seconds: float,
) -> Facts:
    """Collect the facts and check the ledger's promises. DemoError: one does not hold."""
    more = trained.refusal.more_noise
    facts = Facts(
        run=state.id,
        run_status=state.status,
        steps_released=trained.steps,
        steps_admitted=state.next_step,
        steps_by_plan=state.next_step - without_plan,
        # Steps are requested individually, so each decision covers one.
        refusals=history.decisions - state.next_step,
        epsilon=state.epsilon,
        delta=state.delta,
        used=state.used,
        accuracy=accuracy(trained.weights, patients.test_features, patients.test_labels),
        accuracy_without_privacy=accuracy_without_privacy(patients),
        refused_by=trained.refusal.binding_account_path,
        max_steps_that_fit=trained.refusal.max_steps_that_fit,
        noise_for_the_rest=None if more is None else more.noise_multiplier,
        exhausted=trained.refusal.exhausted,
        verification=verification,
        database_url=database_url,
        seconds=round(seconds, 1),
    )
    proven = verification.get("sound") is True and verification.get("steps") == facts.steps_released
    promises = {
        "the ledger admitted exactly the steps that were released": facts.steps_admitted == facts.steps_released,
        "the plan admitted more than a budget without one": facts.steps_by_plan > 0,
        "it refused exactly one": facts.refusals == 1 and history.points[-1].decision == "refused",
        "the spending is within the limit": facts.used <= 1,
        "the charges in the database are sound and cover those steps": proven,
        "the run is completed": facts.run_status == "completed",
    }
    broken = [promise for promise, kept in promises.items() if not kept]
    if broken:
        raise DemoError(f"It is not true that {' and that '.join(broken)}: {facts}")
    return facts


def show(screen: Screen, facts: Facts, refusal: BudgetExceededError) -> None:
    """Print the facts and the refusal."""
    noise = facts.noise_for_the_rest
    screen.say()
    screen.table(
        f"The run is {facts.run_status}",
        (
            ("steps admitted and released", str(facts.steps_admitted)),
            ("of these, thanks to the plan", str(facts.steps_by_plan)),
            ("epsilon", f"{facts.epsilon:.4f} at delta {facts.delta:g}"),
            ("used share of the budget", f"{facts.used:.1%}"),
            ("steps refused", f"{facts.refusals}: nothing of it was computed or released"),
            ("refused by", facts.refused_by),
            ("such steps that still fit", str(facts.max_steps_that_fit)),
            ("noise multiplier for the rest", "none" if noise is None else f"{noise:.4g}"),
            ("test accuracy with privacy", f"{facts.accuracy:.1%}"),
            ("test accuracy without", f"{facts.accuracy_without_privacy:.1%}"),
        ),
    )
    screen.say()
    screen.say(str(refusal))
    screen.say("The accuracies are for this show: a real project tests on records that it may publish about.")
    found = facts.verification
    screen.say(
        f"`epsilon-ledger verify` recomputed {found.get('accounts')} accounts from {found.get('charges')} charges "
        f"for {found.get('steps')} steps: every curve agrees, byte for byte."
    )


def point_further(screen: Screen, demo: DemoFolder, run_id: str, key: str) -> None:
    """Print commands for exploring the demo's ledger with the viewer's key."""
    database = f"EPSILON_LEDGER_DATABASE_URL={shlex.quote(demo.database_url)}"
    program = shlex.join(_program())
    authorization = shlex.quote(f"Authorization: Bearer {key}")
    address = "http://127.0.0.1:8000"
    screen.say()
    screen.say("Look further (this key reads the demo's ledger and nothing else):")
    screen.say(f"  {database} {program} serve --host 127.0.0.1 --port 8000")
    screen.say(f"  {address}/runs/{run_id} in a browser: sign in with the key {key}")
    screen.say(f"  curl -H {authorization} {address}/v1/runs/{run_id}")
    screen.say(f"  curl -H {authorization} '{address}/v1/runs/{run_id}/history?max_points=20'")
    screen.say(f"  {address}/docs for all that can be asked")
    screen.say(f"  {database} {program} verify")
    screen.say(f"All files are in {demo.folder}; delete the folder when you are done.")


def _program() -> list[str]:
    """Return the command line as any shell can run it, regardless of PATH."""
    installed = Path(sys.executable).with_name("epsilon-ledger")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "app"]
