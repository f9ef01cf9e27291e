"""What is drawn in a picture is what the data say: the paths of an SVG are read, and compared with the points."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from app.charts.model import Axis, AxisKind, Chart, Series, SeriesKind, SeriesRole, milliseconds
from app.charts.render import _COLOURS, _ROLES, _SERIES, ChartTheme, Frame, draw
from app.dashboard.assets import asset

Polygon = list[tuple[float, float]]
SVG = "{http://www.w3.org/2000/svg}"
START = datetime(2026, 11, 21, 9, tzinfo=UTC)
TIME = Axis("Time (UTC)", AxisKind.TIME)
CLOSE = 0.02
"""Of a point of a picture."""


def drawn(chart: Chart, theme: ChartTheme = ChartTheme.LIGHT, width: int = 800) -> dict[str, Polygon]:
    """The corners of what is drawn of each series."""
    root = ET.fromstring(draw(chart, Frame(theme, width, 400)))  # noqa: S314 - our own
    found = {}
    for group in root.iter(f"{SVG}g"):
        if group.get("id", "").startswith("series-"):
            [path] = (each.get("d", "") for each in group.iter(f"{SVG}path"))
            found[group.get("id", "")] = [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)]
    return found


def scale(from_points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and start of the line through the first and the last of some (value, pixel)."""
    (first, at), (last, to) = from_points[0], from_points[-1]
    slope = (to - at) / (last - first)
    return slope, at - slope * first


def data_of(polygon: Polygon, across: tuple[float, float], up: tuple[float, float]) -> Polygon:
    """The corners as data."""
    return [((x - across[1]) / across[0], (y - up[1]) / up[0]) for x, y in polygon]


def stepped(points: Sequence[tuple[float, float]]) -> Polygon:
    """The corners of steps: a value holds until the next point."""
    found = [points[0]]
    for x, y in points[1:]:
        found += [(x, found[-1][1]), (x, y)]
    return found


def check_same(drawn: Polygon, expected: Polygon) -> None:
    """Compare two polygons, whose corners may be repeated."""

    def corners(polygon: Polygon) -> Polygon:
        kept: Polygon = []
        for x, y in polygon:
            if not kept or abs(x - kept[-1][0]) > 1e-3 or abs(y - kept[-1][1]) > CLOSE:
                kept.append((x, y))
        return kept

    left, right = corners(drawn), corners(expected)
    assert len(left) == len(right), (left, right)
    for (x, y), (other_x, other_y) in zip(left, right, strict=True):
        assert x == pytest.approx(other_x, abs=1e-2)
        assert y == pytest.approx(other_y, abs=0.05)


@pytest.mark.parametrize("kind", [SeriesKind.LINE, SeriesKind.STEP, SeriesKind.POINTS])
def test_lines_steps_and_points_are_where_the_data_are(kind: SeriesKind) -> None:
    points = [(0.0, 0.0), (10.0, 1.0), (15.0, 1.5), (40.0, 4.0), (100.0, 5.0)]
    frame = Series("Frame", (points[0], points[-1]))
    chart = Chart("Epsilon", Axis("Step", start=0), Axis("Epsilon", start=0), (frame, Series("a", tuple(points), kind)))
    polygons = drawn(chart)
    (left, low), (right, high) = polygons["series-0"][0], polygons["series-0"][-1]
    corners = data_of(polygons["series-1"], scale([(0.0, left), (100.0, right)]), scale([(0.0, low), (5.0, high)]))
    check_same(corners, stepped(points) if kind is SeriesKind.STEP else points)


@pytest.mark.parametrize("seconds", [0, 3, 250, 15_900, 371_520, 138_240_000])
def test_every_span_of_time_has_ticks(seconds: int) -> None:
    points = ((milliseconds(START), 1.0), (milliseconds(START + timedelta(seconds=seconds)), 2.0))
    image = draw(Chart("Epsilon", TIME, Axis("Epsilon"), (Series("a", points),)), Frame(ChartTheme.LIGHT, 800, 400))
    ticks = re.findall(r">((?:\d{4}-)?\d\d-\d\d|[\d-]* ?\d\d:\d\d(?::\d\d)?)<", image.decode())
    assert 2 <= len(set(ticks)) == len(ticks) <= 8


def test_infinite_value_is_a_gap_in_the_picture() -> None:
    points = ((0.0, 1.0), (1.0, float("inf")), (2.0, 2.0), (3.0, 2.5))
    [polygon] = drawn(Chart("Epsilon", Axis("Step"), Axis("Epsilon"), (Series("a", points),))).values()
    assert len({x for x, _ in polygon}) == 3


@pytest.mark.parametrize("theme", ChartTheme)
def test_colours_of_series_differ_from_those_of_roles(theme: ChartTheme) -> None:
    """Except what is spent, where the others begin with the second; and warnings, which stand alone."""

    def numbers(colour: str) -> list[int]:
        return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]

    roles = {look.colour for role, look in _ROLES.items() if role is not SeriesRole.SPENT} - {"warn"}
    for colour in _SERIES[theme]:
        for role in roles:
            away = [abs(a - b) for a, b in zip(numbers(colour), numbers(_COLOURS[theme][role]), strict=True)]
            assert sum(away) > 60, (colour, role)
    assert _SERIES[theme][0] == _COLOURS[theme]["spent"]
    sheet = asset("pages.css").content.decode()
    listed = "; ".join(f"--series-{number}: {colour}" for number, colour in enumerate(_SERIES[theme], 1))
    assert listed in sheet, "pages and pictures have the same colours"
    assert all(f"--{role}: {_COLOURS[theme][role]}" in sheet for role in roles)


def test_attempts_have_colours_of_their_own() -> None:
    attempts = [Series("Attempt 1", ((0.0, 0.0), (1.0, 1.0))), Series("Attempt 2", ((1.0, 1.0), (2.0, 2.0)))]
    last = Series("Attempt 3", ((2.0, 2.0), (3.0, 3.0)), role=SeriesRole.SPENT)
    svg = draw(
        Chart("Epsilon", Axis("Step"), Axis("Epsilon"), (*attempts, last)),
        Frame(ChartTheme.LIGHT, 800, 400),
    ).decode()
    strokes = re.findall(r'id="series-\d".*?stroke="(#\w+)', svg, re.DOTALL)
    assert len(set(strokes)) == 3


@pytest.mark.parametrize(("letter", "width"), [("W", 200), ("i", 800)])
def test_long_names_leave_room_for_what_is_drawn(letter: str, width: int) -> None:
    name = f"a{letter * 300}z"
    points = tuple((float(x), float(x)) for x in range(5))
    chart = Chart(name, Axis("Steps"), Axis("Epsilon"), (Series(name, points, SeriesKind.LINE, SeriesRole.SPENT),))
    image = draw(chart, Frame(ChartTheme.LIGHT, width, 300)).decode()
    assert f"<title>{name}</title>" in image
    [polygon] = drawn(chart, width=width).values()
    assert polygon[-1][0] - polygon[0][0] > 0.25 * width, "in points"
