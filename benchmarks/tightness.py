"""Tightness of epsilon: `python -m benchmarks.tightness` (about a minute).

Every plan is read in six ways at delta 1e-5: exactly, or by dp_accounting's privacy loss distributions (PLD), rounded
down and up; by our PLD; by our curve over the whole grid with the improved conversion; by dp_accounting's Rényi
accountant at its own orders; by our curve with the classic conversion. With `--write` the table goes into
docs/explanation/accounting.md and the plot into docs/images.
"""

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from dp_accounting import dp_event as theirs
from dp_accounting.privacy_accountant import NeighboringRelation as TheirRelation
from dp_accounting.rdp import RdpAccountant
from matplotlib.figure import Figure

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import GRID_VERSION, orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.pld.accountant import pld_epsilon
from app.accounting.rdp import event_curve
from benchmarks.tightness_plans import DELTA, EPOCHS, MNIST, MNIST_STEPS, Plan, epsilon, gaussian_loss, plans

DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "explanation" / "accounting.md"
PLOT: Final = DOCUMENT.parents[1] / "images" / "tightness.svg"
BEGIN: Final = "<!-- tightness: begin, written by benchmarks/tightness.py -->"
END: Final = "<!-- tightness: end -->"
HEADER: Final = ("plan", "exact, or PLD", "our PLD", "our RDP", "our RDP / PLD", "dp_accounting RDP", "classic")

STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "tightness",  # the same picture gives the same bytes
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # the reader's browser takes the first that it has
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
}


@dataclass(frozen=True)
class Row:
    """Epsilons of a plan.

    Args:
        low: exact, or a lower bound.
        high: exact, or an upper bound; None if only Rényi bounds are known.
        pld: by our privacy loss distributions; None if no pair is proven to dominate an event.
        ours: by our curve.
        other: by dp_accounting's Rényi accountant; None if it lacks the mechanism.
        classic: by our curve with the classic conversion.
    """

    low: float
    high: float | None
    pld: float | None
    ours: float
    other: float | None
    classic: float

    def cells(self) -> list[str]:
        """Format the row without its name."""
        low = f"{self.low:.4g}"
        if self.high is None:
            exact, ratio = f"at least {low}", f"at most {self.ours / self.low:.3f}"
        else:
            high = f"{self.high:.4g}"
            exact, ratio = low if low == high else f"{low} to {high}", f"{self.ours / self.high:.3f}"
        other = "none" if self.other is None else f"{self.other:.4g}"
        pld = "none" if self.pld is None else f"{self.pld:.4g}"
        return [exact, pld, f"{self.ours:.4g}", ratio, other, f"{self.classic:.4g}"]


def read(plan: Plan) -> Row:
    """Compute the epsilons of a plan."""
    grid, curve = orders(GRID_VERSION), event_curve(plan.event, plan.relation)
    return Row(
        low=plan.low(),
        high=None if plan.high is None else plan.high(),
        pld=our_pld(plan, DELTA),
        ours=epsilon_of_curve(grid, curve, DELTA).epsilon,
        other=None if plan.other is None else their_epsilon(plan.other, plan.relation),
        classic=epsilon_of_curve(grid, curve, DELTA, "classic").epsilon,
    )


def our_pld(plan: Plan, delta: float) -> float | None:
    """Compute the epsilon by our privacy loss distributions."""
    try:
        return pld_epsilon({plan.event: 1}, plan.relation, delta)
    except UnsupportedEventError:
        return None


def their_epsilon(event: theirs.DpEvent, relation: NeighboringRelation) -> float:
    """Compute the epsilon by dp_accounting's Rényi accountant, which logs skipped orders."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        accountant = RdpAccountant(neighboring_relation=TheirRelation[relation.name])
        accountant.compose(event)
        return float(accountant.get_epsilon(DELTA))
    finally:
        log.setLevel(level)


def table() -> str:
    """Return the table in Markdown."""
    lines = [HEADER, tuple("---" for _ in HEADER), *((plan.name, *read(plan).cells()) for plan in plans())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot() -> str:
    """Return an SVG plot of epsilon over the steps of the table's first plan."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.add_subplot()
        steps = sorted({int(step) for step in np.geomspace(1, MNIST_STEPS, 60).round()})
        for name, values, colour, style in _lines(steps):
            axes.plot(steps, values, style, color=colour, label=name, linewidth=1.8)
        axes.set(
            xscale="log",
            xlim=(1, MNIST_STEPS),
            ylim=(0, None),
            xlabel=f"steps; the last one ends epoch {EPOCHS}",
            ylabel="epsilon at delta 1e-5",
            title="DP-SGD, sampling probability 256/60000, noise multiplier 1.1",
        )
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False)
        picture = StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in picture.getvalue().splitlines()) + "\n"


def _lines(steps: list[int]) -> Iterator[tuple[str, list[float], str, str]]:
    """Yield name, epsilons by number of steps, colour and style."""
    relation, grid = NeighboringRelation.ADD_OR_REMOVE_ONE, orders(GRID_VERSION)
    curve = event_curve(PoissonSampled(MNIST, Gaussian(1.1)), relation)
    event = theirs.PoissonSampledDpEvent(MNIST, theirs.GaussianDpEvent(1.1))
    loss = gaussian_loss(1.1, MNIST)
    classic = [epsilon_of_curve(grid, curve.times(step), DELTA, "classic").epsilon for step in steps]
    yield "our curve, classic conversion", classic, "#999999", "-"
    other = [their_epsilon(theirs.SelfComposedDpEvent(event, step), relation) for step in steps]
    yield "dp_accounting RDP", other, "#e6842a", "-"
    yield "ours", [epsilon_of_curve(grid, curve.times(step), DELTA).epsilon for step in steps], "#1b4f9c", "--"
    yield "PLD, rounded up", [epsilon(loss.self_compose(step)) for step in steps], "#000000", "-"


def main() -> None:
    """Print the table; with `--write`, save it and the plot."""
    found = table()
    print(found)
    if "--write" in sys.argv[1:]:
        before, rest = DOCUMENT.read_text().split(BEGIN)
        _, after = rest.split(END)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{found}\n{END}{after}")
        PLOT.parent.mkdir(exist_ok=True)
        PLOT.write_text(plot())


if __name__ == "__main__":
    main()
