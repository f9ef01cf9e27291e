"""Charts: axes, series and marks, that know neither who draws them nor where the numbers come from."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from app.service.queries.run_history import spread

MOST_ROWS: Final = 40
"""Of the table beside a chart; of more points, so many evenly spread ones stand in it."""

MOST_MARKS: Final = 24
"""Vertical lines that can be told apart; of more, the last ones."""

_MILLE: Final = 1000


def exact(number: float) -> str:
    """A number that somebody has set, as short as it can be written and still be that number."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


class AxisKind(StrEnum):
    """What a chart's horizontal axis counts: things, moments (milliseconds since 1970, UTC), or powers of ten."""

    NUMBER = "number"
    TIME = "time"
    LOG = "log"


class SeriesKind(StrEnum):
    """How points are joined: straight, each until the next one, so and with what lies below filled, or not at all."""

    LINE = "line"
    STEP = "step"
    AREA = "area"
    POINTS = "points"


class SeriesRole(StrEnum):
    """What a series means; by it, colour and dashes are the same everywhere."""

    SPENT = "spent"
    HELD = "held"
    LIMIT = "limit"
    PROJECTED = "projected"
    REFUSED = "refused"
    THRESHOLD = "threshold"


Point = tuple[float, float | None]
"""x and y; without y the line has a gap."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One of the two axes of a chart.

    Args:
        label: what is measured, with its unit.
        kind: how it is divided.
        start: where it begins at the latest; None: where the points do.
    """

    label: str
    kind: AxisKind = AxisKind.NUMBER
    start: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together.

    Args:
        name: for the legend, the tooltip and the table.
        points: in the order in which they are joined.
        kind: how they are joined.
        role: what they mean; None: one of several alike.
    """

    name: str
    points: tuple[Point, ...]
    kind: SeriesKind = SeriesKind.LINE
    role: SeriesRole | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a place of the horizontal axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Table:
    """The numbers of a chart, for who reads and does not look.

    Args:
        head: the names of the columns, the horizontal axis first.
        rows: as they are written.
        left_out: how many places of the horizontal axis are not among them.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Args:
        title: what it shows.
        x: the horizontal axis.
        y: the vertical axis.
        series: drawn in this order, the first behind the others.
        marks: vertical lines.
        stacked: whether areas stand on one another; then they have the same places of the horizontal axis.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    stacked: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be drawn but limits."""
        fixed = {SeriesRole.LIMIT, SeriesRole.THRESHOLD}
        return not any(series.points for series in self.series if series.role not in fixed)

    @property
    def summary(self) -> str:
        """The chart in a sentence, for who does not see it."""
        if self.is_empty:
            return f"{self.title}: nothing yet."
        told = [f"{each.name} {_last(each)}" for each in self.series if each.points and _last(each)]
        shown = "; ".join(told[:6]) + (f"; and {len(told) - 6} more" if len(told) > 6 else "")  # noqa: PLR2004
        return f"{self.title}. At the end: {shown}."

    def json(self) -> str:
        """The chart for a script, safe within an element of a page."""
        spec = {
            "title": self.title,
            "x": {"label": self.x.label, "kind": str(self.x.kind), "from": self.x.start},
            "y": {"label": self.y.label, "kind": str(self.y.kind), "from": self.y.start},
            "stacked": self.stacked,
            "series": [
                {
                    "name": each.name,
                    "kind": str(each.kind),
                    "role": each.role and str(each.role),
                    "points": [[x, _finite(y)] for x, y in each.points],
                }
                for each in self.series
            ],
            "marks": [{"x": mark.x, "label": mark.label} for mark in self.marks[-MOST_MARKS:]],
        }
        return _embedded(spec)

    def place(self, x: float) -> str:
        """How a place of the horizontal axis is written."""
        if self.x.kind is AxisKind.TIME:
            return f"{datetime.fromtimestamp(x / _MILLE, UTC):%Y-%m-%d %H:%M}"
        return f"{x:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}") if x == int(x) else f"{x:.6g}"

    def table(self) -> Table:
        """Its numbers as a table: a row for each place of the horizontal axis, evenly thinned out to MOST_ROWS."""
        places = sorted({x for series in self.series for x, _ in series.points})
        shown = [places[at] for at in spread(0, len(places), MOST_ROWS)]
        columns: list[dict[float, float | None]] = [dict(series.points) for series in self.series]
        rows = tuple((self.place(x), *(written(column[x]) if x in column else "" for column in columns)) for x in shown)
        return Table((self.x.label, *(series.name for series in self.series)), rows, len(places) - len(shown))


def milliseconds(at: datetime) -> float:
    """A moment's place on an axis of time."""
    return round(at.timestamp() * _MILLE)


def written(y: float | None) -> str:
    """A number of the vertical axis, rounded up to four significant digits; what was lost is not made smaller."""
    if y is None:
        return ""
    if math.isinf(y):
        return "∞"
    if y == 0:
        return "0"
    digits = 3 - math.floor(math.log10(abs(y)))
    scale = 10.0**digits
    return f"{math.ceil(round(y * scale, 6)) / scale:.{max(digits, 0)}f}"


def _last(series: Series) -> str:
    return next((written(y) for _, y in reversed(series.points) if y is not None), "")


def _finite(y: float | None) -> float | None:
    return None if y is None or not math.isfinite(y) else y


def _embedded(spec: dict[str, Any]) -> str:
    """JSON in which nothing ends the element that holds it, and that every parser of JavaScript takes."""
    text = json.dumps(spec, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
