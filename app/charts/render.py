"""Charts as SVG images, written as text; the same chart gives the same bytes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from html import escape
from typing import Final

from app.charts.model import MOST_MARKS, AxisKind, Chart, Series, SeriesKind, SeriesRole, format_position

MEDIA_TYPE: Final = "image/svg+xml"


class ChartTheme(StrEnum):
    """Dark on light, or light on dark."""

    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True, slots=True)
class Frame:
    """Theme and size in pixels of an image."""

    theme: ChartTheme
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class _Look:
    """How a series is drawn; its colour in `_ROLES` is the name of one in `_COLOURS`."""

    colour: str
    dash: str = "none"
    width: float = 2

    @property
    def stroke(self) -> str:
        """The attributes of a line."""
        return f'stroke="{self.colour}" stroke-width="{self.width:g}" stroke-dasharray="{self.dash}"'


_COLOURS: Final[Mapping[ChartTheme, Mapping[str, str]]] = {
    ChartTheme.LIGHT: {
        "paper": "#ffffff",
        "ink": "#16202b",
        "soft": "#51606f",
        "line": "#d5dbe1",
        "spent": "#0072b2",
        "warn": "#a85a00",
        "stop": "#b83a00",
    },
    ChartTheme.DARK: {
        "paper": "#10161c",
        "ink": "#e8edf2",
        "soft": "#a9b6c2",
        "line": "#33414e",
        "spent": "#56b4e9",
        "warn": "#ffc145",
        "stop": "#ff8a5c",
    },
}
_SERIES: Final[Mapping[ChartTheme, Sequence[str]]] = {
    ChartTheme.LIGHT: ("#0072b2", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7b4fb5"),
    ChartTheme.DARK: ("#56b4e9", "#4fd1a5", "#e2a3c7", "#f0e442", "#0f8fd6", "#b79cf2"),
}
"""Colours as in the style sheet of the pages, none of them one of a role other than what is spent."""

_ROLES: Final[Mapping[SeriesRole, _Look]] = {
    SeriesRole.SPENT: _Look("spent", width=2.5),
    SeriesRole.LIMIT: _Look("stop", "10 4"),
    SeriesRole.PROJECTED: _Look("soft", "2 4"),
    SeriesRole.REFUSED: _Look("stop"),
    SeriesRole.REFERENCE: _Look("soft", "4 3"),
    SeriesRole.THRESHOLD: _Look("warn", "2 6", width=1.5),
}
_DASHES: Final = ("none", "6 3", "2 3", "10 3 2 3", "14 4", "4 2 1 2")

_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
_CENTRED: Final = 'text-anchor="middle"'
_LETTER: Final = 6.5
"""Pixels of a character of 12 pixels, about."""

_CROSS: Final = "l 8 8 m 0 -8 l -8 8"
_EDGE: Final = 14
_LINE: Final = 20
"""Pixels around an image, and of a line of text."""

_DAY: Final = 86_400
_PACES: Final = [
    *(1, 5, 15, 60, 300, 900, 3600, 10_800, 21_600, 43_200),
    *(days * _DAY for days in (1, 2, 7, 14, 28, 91, 182, 364, 3640)),
]
"""Seconds between marks of a time axis, as on the pages."""

Corners = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps the values from `low` to `high` to pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)


def draw(chart: Chart, frame: Frame) -> bytes:
    """Draw a chart of lines, steps and points as SVG, which loads and runs nothing."""
    colours, looks = _COLOURS[frame.theme], _looks(chart, frame.theme)
    legend = _legend(chart, looks, frame)
    shapes = [_pieces(series) for series in chart.series]
    heights = [y for pieces in shapes for piece in pieces for _, y in piece]
    foot = frame.height - _LINE * len(legend) - 2.6 * _LINE
    low, high = _extent(heights, chart.y.start)
    high += 0.04 * (high - low)  # a limit is no edge
    step = _step((high - low) / max(2, (foot - 2 * _LINE) // 45))
    ups = [step * number for number in range(math.floor(low / step), math.floor(high / step) + 1)]
    y = _Scale(ups[0], high, foot, 2 * _LINE)
    left = _EDGE + _LINE + _LETTER * max(len(_number(up)) for up in ups)
    x = _Scale(*_across(chart), left, frame.width - 2 * _EDGE)
    size = f'width="{frame.width}" height="{frame.height}" viewBox="0 0 {frame.width} {frame.height}"'
    font = f'font-family="{_FONT}" font-size="12" fill="{colours["soft"]}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} {font}>',
        f"<title>{escape(chart.title)}</title><desc>{escape(chart.summary)}</desc>",
        f'<rect width="100%" height="100%" fill="{colours["paper"]}"/>',
        _text(_EDGE, 1.2 * _LINE, _short(chart.title, frame.width // 8), f'font-size="14" fill="{colours["ink"]}"'),
        *_grid(chart, x, y, ups, colours["line"]),
        _text((x.start + x.end) / 2, foot + 2 * _LINE, chart.x.label, _CENTRED),
        f'<g transform="rotate(-90)">{_text(-(y.start + y.end) / 2, _EDGE + 6, chart.y.label, _CENTRED)}</g>',
        *(
            _drawn(series, number, look, [[(x.at(px), y.at(py)) for px, py in piece] for piece in pieces])
            for number, (series, look, pieces) in enumerate(zip(chart.series, looks, shapes, strict=True))
        ),
        *_marks(chart, x, y, colours),
        *(
            f'<g transform="translate(0 {foot + (2.9 + row) * _LINE:g})" fill="{colours["ink"]}">{"".join(entries)}</g>'
            for row, entries in enumerate(legend)
        ),
        "</svg>\n",
    ]
    return "\n".join(parts).encode()


def _grid(chart: Chart, x: _Scale, y: _Scale, ups: Sequence[float], line: str) -> Iterator[str]:
    for up in ups:
        yield f'<path stroke="{line}" d="M {x.start:g} {y.at(up):g} H {x.end:g}"/>'
        yield _text(x.start - 6, y.at(up) + 4, _number(up), 'text-anchor="end"')
    for place, label in _places(chart, x):
        yield f'<path stroke="{line}" d="M {x.at(place):g} {y.start:g} V {y.end:g}"/>'
        yield _text(min(x.at(place), x.end + 2 * _EDGE - _LETTER * len(label) / 2), y.start + 16, label, _CENTRED)


def _looks(chart: Chart, theme: ChartTheme) -> list[_Look]:
    # The first colour is that of what is spent.
    turn = int(any(series.role is SeriesRole.SPENT for series in chart.series))
    found = []
    for series in chart.series:
        if series.role is None:
            found.append(_Look(_SERIES[theme][turn % len(_DASHES)], _DASHES[turn % len(_DASHES)]))
            turn += 1
        else:
            look = _ROLES[series.role]
            found.append(replace(look, colour=_COLOURS[theme][look.colour]))
    return found


def _pieces(series: Series) -> list[Corners]:
    """Return the corners of a series between its gaps."""
    pieces: list[Corners] = [[]]
    for x, y in series.points:
        if y is None or not math.isfinite(y):
            pieces.append([])
            continue
        if series.kind is SeriesKind.STEP and pieces[-1]:
            pieces[-1].append((x, pieces[-1][-1][1]))
        pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _drawn(series: Series, number: int, look: _Look, pieces: list[Corners]) -> str:
    if series.kind is SeriesKind.POINTS:
        path = " ".join(f"M {x:g} {y:g} m -4 -4 {_CROSS}" for piece in pieces for x, y in piece)
    else:
        path = " ".join("M " + " L ".join(f"{x:g} {y:g}" for x, y in [*piece, piece[-1]]) for piece in pieces)
    joined = 'fill="none" stroke-linejoin="round" stroke-linecap="round"'
    return f'<g id="series-{number}"><path {look.stroke} {joined} d="{path}"/></g>'


def _marks(chart: Chart, x: _Scale, y: _Scale, colours: Mapping[str, str]) -> Iterator[str]:
    most = int((x.end - x.start) / _LETTER)
    for number, mark in enumerate(chart.marks[-MOST_MARKS:]):
        at, row, label = x.at(mark.x), y.end + 14 + 16 * (number % 4), _short(mark.label, most)
        side, anchor = (-4, "end") if at + _LETTER * len(label) > x.end else (4, "start")
        halo = f'fill="{colours["ink"]}" stroke="{colours["paper"]}" stroke-width="4" paint-order="stroke"'
        yield (
            f'<path stroke="{colours["ink"]}" stroke-dasharray="1 3" d="M {at:g} {y.start:g} V {y.end:g}"/>'
            + _text(at + side, row, label, f'{halo} text-anchor="{anchor}"')
        )


def _legend(chart: Chart, looks: Sequence[_Look], frame: Frame) -> list[list[str]]:
    """Lay the names of the series out in rows, of which a small image has the first ones."""
    rows: list[list[str]] = [[]]
    at = float(_EDGE)
    for series, look in zip(chart.series, looks, strict=True):
        if not series.points:
            continue
        name = _short(series.name, frame.width // 16)
        width = 44 + _LETTER * len(name)
        if rows[-1] and at + width > frame.width:
            rows.append([])
            at = float(_EDGE)
        sample = f"M {at + 10:g} -8 {_CROSS}" if series.kind is SeriesKind.POINTS else f"M {at:g} -4 h 28"
        rows[-1].append(f'<path {look.stroke} d="{sample}"/>{_text(at + 34, 0, name)}')
        at += width + 10
    return rows[: frame.height // (8 * _LINE)]


def _across(chart: Chart) -> tuple[float, float]:
    """Return the ends of the horizontal axis; around a single moment it shows two minutes."""
    values = [x for series in chart.series for x, _ in series.points] + [mark.x for mark in chart.marks[-MOST_MARKS:]]
    if chart.x.kind is AxisKind.TIME and len(set(values)) == 1:
        return values[0] - 60_000, values[0] + 60_000
    return _extent(values, chart.x.start)


def _extent(values: Sequence[float], start: float | None) -> tuple[float, float]:
    low = min(values, default=0.0) if start is None else min([start, *values])
    high = max(values, default=low)
    return low, high if high > low else low + (abs(low) or 1.0)


def _places(chart: Chart, x: _Scale) -> list[tuple[float, str]]:
    """Return the positions that the horizontal axis names."""
    span, most = x.high - x.low, max(2.0, (x.end - x.start) / 110)
    if chart.x.kind is not AxisKind.TIME:
        step = _step(span / most)
        numbers = [step * each for each in range(math.ceil(x.low / step), math.floor(x.high / step) + 1)]
        return [(at, _number(at)) for at in numbers]
    pace = next((each for each in _PACES if span / (1000 * each) <= most), _PACES[-1])
    times = [1000 * pace * each for each in range(math.ceil(x.low / 1000 / pace), math.floor(x.high / 1000 / pace) + 1)]
    shown = "%Y-%m-%d" if pace >= _DAY else "%m-%d %H:%M" if pace >= 60 else "%H:%M:%S"  # noqa: PLR2004 - a minute
    return [(at, f"{Chart.moment(at):{shown}}") for at in (times if len(times) > 1 else (x.low, x.high))]


def _step(least: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not below a number."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-300)))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least), 10 * power)


def _number(value: float) -> str:
    return format_position(value) if abs(value) < 1e9 else f"{value:.6g}"  # noqa: PLR2004 - longer than its place


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(text)}</text>'


def _short(text: str, most: int) -> str:
    """Shorten a text in the middle: paths differ at both ends. The description has all of it."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"
