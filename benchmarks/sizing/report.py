"""Tables and plot of docs/operations/sizing.md."""

from io import StringIO
from math import isinf
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import tightness
from benchmarks.sizing.costs import Way, ways
from benchmarks.sizing.model import (
    CACHED_ORGANISATIONS,
    ROW_LOADS,
    ROW_WORKERS,
    Need,
    need,
    predictions,
    saturations,
    shared_population,
    waiting_times,
)

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "operations" / "sizing.md"
PLOT: Final = DOCUMENT.parents[1] / "images" / "sizing.svg"
ORGANISATIONS: Final = (10, 100, 1_000, 10_000)

STYLE: Final = tightness.STYLE | {"svg.hashsalt": "sizing", "axes.axisbelow": True}
MARKS: Final = (("o", "#1b4f9c"), ("D", "#b3261e"), ("s", "#999999"), ("^", "#2a7d4f"), ("v", "#e6842a"))
"""Shape and colour of each component, so that none is told by its colour alone."""


def number(value: float) -> str:
    """Format a number with two digits that count."""
    if isinf(value):
        return "not used"
    digits = len(str(int(value))) - 2
    return f"{round(value, -digits):,.0f}" if digits >= 0 else f"{value:.2g}"


def volume(value: float) -> str:
    """Format bytes in a unit that suits them."""
    unit, size = next(
        (unit, size) for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if value >= size
    )
    return f"{number(value / size)} {unit}"


def table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [list(header), ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def costs_table() -> str:
    """Return what one step costs, for each way to ask."""
    header = ("steps asked for as", "worker process", "PostgreSQL", "lock of a population's row", "log", "kept")
    return table(
        header,
        [
            [
                way.name,
                f"{number(way.worker)} µs",
                f"{number(way.store)} µs",
                "none" if way.row is None else f"{number(way.row)} µs",
                f"{number(way.log)} B",
                f"{number(way.kept)} B",
            ]
            for way in ways()
        ],
    )


def saturation_table() -> str:
    """Return the steps a second at which each component saturates."""
    header = ("steps a second at most", *(each.component for each in saturations(ways()[0])))
    return table(header, [[way.name, *(number(each.steps) for each in saturations(way))] for way in ways()])


def needs_table() -> str:
    """Return what organisations need."""
    header = (
        "organisations, steps a second",
        "asked for as",
        "workers",
        "their memory",
        "PgBouncer",
        "cores of PostgreSQL",
        "database servers",
        "log a second",
        "kept a day",
    )
    chosen = [way for way in ways() if way.name in {"single steps, alone", "grants of 50", "count: 1,000"}]
    return table(header, [_need_row(way, count) for count in ORGANISATIONS for way in chosen])


def _need_row(way: Way, organisations: int) -> list[str]:
    found: Need = need(way, organisations)
    return [
        f"{organisations:,}, {found.steps:,.0f}",
        way.name,
        f"{found.workers:,}",
        volume(found.memory),
        "needed" if found.pooled else "no",
        f"{found.cores:,}",
        f"{found.servers:,}",
        volume(found.log),
        volume(found.kept_a_day),
    ]


def validation_table() -> str:
    """Return measured figures beside the model's."""
    return table(
        ("figure", "used to fit", "measured", "model", "error"),
        [
            [
                each.name,
                "yes" if each.fitted else "no",
                _predicted(each.measured),
                _predicted(each.predicted),
                f"{100 * each.error:+.1f} %",
            ]
            for each in predictions()
        ],
    )


def _predicted(value: float) -> str:
    return f"{value:,.0f}" if round(value) > 1 else f"{value:.2f}"  # a rate, or a ratio


def waiting_table() -> str:
    """Return waiting times of one worker by its load."""
    header = (
        "single steps a second",
        f"{CACHED_ORGANISATIONS} organisations: group",
        "median",
        "99 %",
        "one: group",
        "median",
        "99 %",
    )
    return table(
        header,
        [
            [
                f"{found.rate:,.0f}",
                *(
                    text
                    for each in (found.many, found.one)
                    for text in (f"{each.group:.1f}", f"{each.median:.1f} ms", f"{each.late:.1f} ms")
                ),
            ]
            for found in waiting_times()
        ],
    )


def tables() -> dict[str, str]:
    """Return all tables of the page by name."""
    return {
        "needs": needs_table(),
        "saturation": saturation_table(),
        "costs": costs_table(),
        "waiting": waiting_table(),
        "validation": validation_table(),
    }


def marks(name: str) -> tuple[str, str]:
    """Return the lines of the page around a table."""
    return f"<!-- {name}: begin, written by benchmarks/sizing -->", f"<!-- {name}: end -->"


def plot() -> str:
    """Return the SVG plot: saturation of components, and waiting under one population."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.5, 8), layout="constrained")
        upper, lower = figure.subplots(2, 1, height_ratios=(1.25, 1))
        _draw_saturations(upper)
        _draw_waiting(lower)
        picture = StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in picture.getvalue().splitlines()) + "\n"


def _draw_saturations(axes: Axes) -> None:
    names = [way.name for way in ways()]
    found = [saturations(way) for way in ways()]
    for place, (shape, colour) in enumerate(MARKS):
        points = [(each[place].steps, row) for row, each in enumerate(found) if not isinf(each[place].steps)]
        axes.plot(*zip(*points, strict=True), shape, color=colour, label=found[0][place].component, markersize=8)
    axes.axvline(1e6, color="#000000", linewidth=1, linestyle=":")
    axes.set(
        xscale="log",
        xlabel="steps a second; the dotted line is a million",
        yticks=range(len(names)),
        yticklabels=names,
        title="Where one component saturates",
    )
    axes.invert_yaxis()
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.4, -0.18), fontsize=10)


def _draw_waiting(axes: Axes) -> None:
    for workers, style in zip(ROW_WORKERS, ("-", "--", "-.", ":"), strict=True):
        late = [shared_population(workers, rate).late for rate in ROW_LOADS]
        axes.plot(ROW_LOADS, late, style, label=f"{workers} worker{'s' if workers > 1 else ''}", linewidth=1.8)
    axes.set(
        yscale="log",
        xlabel="single steps a second of many runs under one population",
        ylabel="99 % answered within (ms)",
        title="One population saturates, whatever the number of workers",
    )
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False)
