"""Charts: axes, series and marks, independent of source and rendering."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Context
from enum import StrEnum
from typing import Final

from app.accounting.conversion import spread

MOST_ROWS: Final = 40
"""Maximum number of rows of a table."""

MOST_MARKS: Final = 24
"""Maximum number of vertical lines; the last ones are drawn."""

MOST_DIGITS: Final = 15
"""Maximum number of digits behind the point; of a smaller value its power of ten is written."""

_FOUR_DIGITS: Final = Context(prec=4, rounding=ROUND_CEILING)

PERCENT: Final = "\N{NARROW NO-BREAK SPACE}%"
"""Percent sign after a number."""

_MILLE: Final = 1000


def count(number: int) -> str:
    """Format an integer in groups of three digits."""
    return _grouped(f"{number:,}")


def _grouped(number: str) -> str:
    return number.replace(",", "\N{NARROW NO-BREAK SPACE}")


class AxisKind(StrEnum):
    """Scale of the horizontal axis: numbers, or times (milliseconds since 1970, UTC)."""

    NUMBER = "number"
    TIME = "time"


class SeriesKind(StrEnum):
    """How points are joined: straight, as steps, as filled steps, or not at all."""

    LINE = "line"
    STEP = "step"
    AREA = "area"
    POINTS = "points"


class SeriesRole(StrEnum):
    """Meaning of a series; determines its colour and dashes in every chart."""

    SPENT = "spent"
    LIMIT = "limit"
    PROJECTED = "projected"
    REFUSED = "refused"
    THRESHOLD = "threshold"
    REFERENCE = "reference"


Point = tuple[float, float | None]
"""x and y; without y the line has a gap."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One of the two axes of a chart, from `start` at the latest, or from the first point."""

    label: str
    kind: AxisKind = AxisKind.NUMBER
    start: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one line, bar or area, in drawing order; the role is None for one of several alike."""

    name: str
    points: tuple[Point, ...]
    kind: SeriesKind = SeriesKind.LINE
    role: SeriesRole | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at a position of the horizontal axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers of a chart as text, the horizontal axis first; `left_out` counts the positions without a row.

    `moments` has the time of each row if the axis is one of times.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int
    moments: tuple[datetime, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; the first series is in the background. Stacked areas share their horizontal positions."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    stacked: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw except limits."""
        fixed = {SeriesRole.LIMIT, SeriesRole.THRESHOLD}
        return not any(series.points for series in self.series if series.role not in fixed)

    @property
    def summary(self) -> str:
        """The chart in a sentence, for screen readers."""
        if self.is_empty:
            return f"{self.title}: nothing yet."
        ends = [f"{each.name} {_last(each)}" for each in self.series if each.points and _last(each)]
        shown = "; ".join(ends[:6]) + (f"; and {len(ends) - 6} more" if len(ends) > 6 else "")  # noqa: PLR2004
        return f"{self.title}. At the end: {shown}."

    def json(self) -> str:
        """Serialize the chart as ASCII JSON without characters that end an HTML element."""
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
        text = json.dumps(spec, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def place(self, x: float) -> str:
        """Format a horizontal position."""
        if self.x.kind is AxisKind.TIME:
            return f"{self.moment(x):%Y-%m-%d %H:%M}"
        return format_position(x)

    @staticmethod
    def moment(x: float) -> datetime:
        """Convert a position on a time axis to its time."""
        return datetime.fromtimestamp(x / _MILLE, UTC)

    def table(self) -> Table:
        """Tabulate the chart, thinned evenly to `MOST_ROWS` positions."""
        places = sorted({x for series in self.series for x, _ in series.points})
        shown = [places[at] for at in spread(0, len(places), MOST_ROWS)]
        columns: list[dict[float, float | None]] = [dict(series.points) for series in self.series]
        rows = tuple(
            (self.place(x), *(format_value(column[x]) if x in column else "" for column in columns)) for x in shown
        )
        moments = tuple(map(self.moment, shown)) if self.x.kind is AxisKind.TIME else ()
        return Table((self.x.label, *(series.name for series in self.series)), rows, len(places) - len(shown), moments)


def format_position(x: float) -> str:
    """Format a number on an axis."""
    return count(int(x)) if x == int(x) else f"{x:.6g}"


def milliseconds(at: datetime) -> float:
    """Convert a timestamp to its position on a time axis."""
    return round(at.timestamp() * _MILLE)


def format_value(y: float | None) -> str:
    """Format a value, rounded up to four significant digits so that no loss looks smaller."""
    if y is None:
        return ""
    if math.isinf(y):
        return "∞"
    if y == 0:
        return "0"
    digits = 3 - math.floor(math.log10(abs(y)))
    if digits > MOST_DIGITS:
        return f"{_FOUR_DIGITS.create_decimal(repr(y)):e}"
    scale = 10.0**digits
    return _grouped(f"{math.ceil(round(y * scale, 6)) / scale:,.{max(digits, 0)}f}")


def _last(series: Series) -> str:
    return next((format_value(y) for _, y in reversed(series.points) if y is not None), "")


def _finite(y: float | None) -> float | None:
    return None if y is None or not math.isfinite(y) else y
