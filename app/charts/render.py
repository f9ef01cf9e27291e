"""Charts as SVG or PNG images; the same chart gives the same bytes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from html import escape
from importlib.util import find_spec
from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from app.charts.model import AxisKind, Chart, Series, SeriesKind, SeriesRole, format_position
from app.ledger.errors import LedgerError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI: Final = 100


class ChartsNotInstalledError(LedgerError, code="charts_not_installed"):
    """Images need matplotlib, which is an optional extra."""


class PictureKind(StrEnum):
    """Image format."""

    SVG = "svg"
    PNG = "png"

    @property
    def media_type(self) -> str:
        """The media type of the format."""
        return "image/svg+xml" if self is PictureKind.SVG else "image/png"


class ChartTheme(StrEnum):
    """Dark on light, or light on dark."""

    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True, slots=True)
class Frame:
    """Format, theme and size in pixels of an image."""

    kind: PictureKind
    theme: ChartTheme
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class _Look:
    """How a series is drawn; its colour in `_ROLES` is the name of one in `_COLOURS`."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]] = "solid"
    width: float = 1.8
    marker: str = ""


_COLOURS: Final[Mapping[ChartTheme, Mapping[str, str]]] = {
    ChartTheme.LIGHT: {
        "paper": "#ffffff",
        "ink": "#16202b",
        "soft": "#51606f",
        "line": "#d5dbe1",
        "spent": "#0072b2",
        "reserved": "#e69f00",
        "warn": "#a85a00",
        "stop": "#b83a00",
    },
    ChartTheme.DARK: {
        "paper": "#10161c",
        "ink": "#e8edf2",
        "soft": "#a9b6c2",
        "line": "#33414e",
        "spent": "#56b4e9",
        "reserved": "#f0b429",
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
    SeriesRole.SPENT: _Look("spent", width=2.2),
    SeriesRole.RESERVED: _Look("reserved", (0, (8, 3))),
    SeriesRole.LIMIT: _Look("stop", (0, (8, 3))),
    SeriesRole.PROJECTED: _Look("soft", (0, (2, 3))),
    SeriesRole.REFUSED: _Look("stop", marker="x"),
    SeriesRole.REFERENCE: _Look("soft", (0, (4, 3))),
    SeriesRole.THRESHOLD: _Look("warn", (0, (1, 3)), width=1.2),
}
_DASHES: Final = ("solid", (0, (6, 3)), (0, (2, 3)), (0, (8, 3, 2, 3)), (0, (12, 4)), (0, (4, 2, 1, 2)))

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "epsilon-ledger",
    "svg.fonttype": "path",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.family": "DejaVu Sans",
    "font.size": 9,
}

PIXELS_OF_LABEL: Final = 16
PIXELS_OF_TITLE: Final = 8
"""Width for each character: longer texts, as of paths of long names, would leave no room for what is drawn."""

_drawing: Final = Lock()


@cache
def can_draw() -> bool:
    """Return whether matplotlib is installed, without importing it."""
    return find_spec("matplotlib") is not None


def require_drawing() -> None:
    """Raise ChartsNotInstalledError unless images can be rendered."""
    if not can_draw():
        raise ChartsNotInstalledError("This service renders no images: pip install 'epsilon-ledger[charts]'.")


def draw(chart: Chart, frame: Frame) -> bytes:
    """Render a chart as an image, deterministically; it needs matplotlib (`require_drawing`)."""
    # Imported for the first image: the import takes half a second of the service's start.
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    colours = _COLOURS[frame.theme]
    with _drawing, rc_context(_SETTINGS):  # matplotlib's settings are global
        size = (frame.width / DPI, frame.height / DPI)
        figure = Figure(figsize=size, dpi=DPI, facecolor=colours["paper"], layout="constrained")
        axes = figure.add_subplot(facecolor=colours["paper"])
        _series(axes, chart, frame)
        axes.set_title(
            _short(chart.title, frame.width // PIXELS_OF_TITLE), color=colours["ink"], fontsize=10.5, loc="left"
        )
        _decorate_axes(axes, chart, colours)
        out = BytesIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        named = nothing if frame.kind is PictureKind.SVG else {"Software": None, "Title": chart.title}
        figure.savefig(out, format=str(frame.kind), facecolor=colours["paper"], metadata=named)
    return _with_description(out.getvalue(), chart) if frame.kind is PictureKind.SVG else out.getvalue()


def _series(axes: "Axes", chart: Chart, frame: Frame) -> None:
    # The first colour is that of what is spent.
    plain = int(any(series.role is SeriesRole.SPENT for series in chart.series))
    below: list[float] = []
    for number, series in enumerate(chart.series):
        look = _look(series, frame.theme, plain)
        name = {"label": _short(series.name, frame.width // PIXELS_OF_LABEL), "gid": f"series-{number}"}
        plain += series.role is None
        if not series.points:
            continue
        xs = [_place(chart, x) for x, _ in series.points]
        ys = [math.nan if y is None or math.isinf(y) else y for _, y in series.points]
        if series.kind is SeriesKind.AREA:
            floor = below if chart.stacked and len(below) == len(ys) else [0.0] * len(ys)
            below = [low + y for low, y in zip(floor, ys, strict=True)]
            axes.fill_between(xs, floor, below, step="post", color=look.colour, alpha=0.65, linewidth=0, **name)  # type: ignore[arg-type]
        elif series.kind is SeriesKind.POINTS:
            axes.plot(xs, ys, linestyle="none", marker=look.marker or "o", color=look.colour, zorder=3, **name)  # type: ignore[arg-type]
        else:
            how = "steps-post" if series.kind is SeriesKind.STEP else "default"
            line = {"color": look.colour, "linestyle": look.dash, "linewidth": look.width}
            axes.plot(xs, ys, drawstyle=how, **line, **name)  # type: ignore[arg-type]


def _decorate_axes(axes: "Axes", chart: Chart, colours: Mapping[str, str]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415 - as said
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415 - as said

    axes.set_xlabel(chart.x.label, color=colours["soft"])
    axes.set_ylabel(chart.y.label, color=colours["soft"])
    axes.tick_params(colors=colours["soft"])
    axes.grid(visible=True, color=colours["line"], linewidth=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_color(colours["line"])
    if chart.x.kind is AxisKind.TIME:
        # With five ticks at least, as it has them by itself, it finds no interval for four and a half minutes.
        locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
        moments = {x for series in chart.series for x, _ in series.points} | {mark.x for mark in chart.marks}
        if len(moments) == 1:  # around a single moment, matplotlib shows four years
            moment = _place(chart, *moments)
            axes.set_xlim(moment - timedelta(minutes=1), moment + timedelta(minutes=1))
    elif chart.x.kind is AxisKind.LOG:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_position(x)))
    if chart.x.start is not None:
        axes.set_xlim(left=chart.x.start)
    if chart.y.start is not None:
        axes.set_ylim(bottom=chart.y.start)
    for mark in chart.marks:
        axes.axvline(_place(chart, mark.x), color=colours["ink"], linewidth=0.8, linestyle=(0, (1, 3)))
        axes.annotate(
            mark.label,
            (_place(chart, mark.x), 0.02),
            xycoords=("data", "axes fraction"),
            color=colours["ink"],
            fontsize=7.5,
            rotation=90,
            va="bottom",
            ha="right",
        )
    if any(series.points for series in chart.series):
        legend = axes.legend(loc="best", fontsize=8, facecolor=colours["paper"], edgecolor=colours["line"])
        for text in legend.get_texts():
            text.set_color(colours["ink"])


def _short(text: str, most: int) -> str:
    """Shorten a text in the middle: paths differ at both ends. The description has all of it."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def _place(chart: Chart, x: float) -> Any:  # noqa: ANN401 - a number, or a moment
    return datetime.fromtimestamp(x / 1000, UTC) if chart.x.kind is AxisKind.TIME else x


def _look(series: Series, theme: ChartTheme, place: int) -> _Look:
    if series.role is not None:
        look = _ROLES[series.role]
        return replace(look, colour=_COLOURS[theme][look.colour])
    turn = place % len(_DASHES)
    return _Look(_SERIES[theme][turn], _DASHES[turn])


def _with_description(svg: bytes, chart: Chart) -> bytes:
    """Add a title and a description to an SVG, for screen readers."""
    head, opened, rest = svg.partition(b"<svg ")
    attributes, closed, body = rest.partition(b">")
    words = f"<title>{escape(chart.title)}</title><desc>{escape(chart.summary)}</desc>"
    named = b'<svg role="img" ' if opened else b""
    # The DOCTYPE refers to a DTD on another host.
    return head.partition(b"<!DOCTYPE")[0] + named + attributes + closed + words.encode() + body
