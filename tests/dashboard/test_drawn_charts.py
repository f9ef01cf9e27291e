"""What a browser draws of a chart is what the data say: the strokes and fills of the canvas are read."""

import random
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import SLOWEST, session_cookie
from tests.dashboard.sample_hospital import Hospital

RECORD = """
(() => {
  const paths = (globalThis.drawnPaths = []), canvas = CanvasRenderingContext2D.prototype;
  const wrap = (made, name, also) => {
    const plain = made[name];
    made[name] = function (...given) { also(this, given); return plain.apply(this, given); };
  };
  wrap(canvas, "beginPath", (pen) => { pen.recorded = []; });
  for (const made of [canvas, Path2D.prototype]) {
    for (const name of ["moveTo", "lineTo"]) wrap(made, name, (pen, [x, y]) => (pen.recorded ??= []).push([x, y]));
  }
  for (const [how, style] of [["stroke", "strokeStyle"], ["fill", "fillStyle"]]) {
    wrap(canvas, how, (pen, [path]) => {
      const { recorded } = path instanceof Path2D ? path : pen;
      paths.push({ how, colour: pen[style], points: [...(recorded ?? [])] });
    });
  }
})()
"""
"""Runs before the page's own scripts."""

READ = """
(canvas) => {
  const chart = Chart.getChart(canvas), spec = JSON.parse(canvas.closest("figure").querySelector("script").textContent);
  drawnPaths.length = 0;
  chart.draw();
  const { x, y } = chart.scales;
  return {
    spec, paths: [...drawnPaths], colours: chart.data.datasets.map((each) => [each.borderColor, each.backgroundColor]),
    scale: { x0: x.getPixelForValue(x.min), x1: x.getPixelForValue(x.max), xmin: x.min, xmax: x.max,
             y0: y.getPixelForValue(y.min), y1: y.getPixelForValue(y.max), ymin: y.min, ymax: y.max },
  };
}
"""

REDRAW = """
(rising) => {
  const data = document.querySelector("#shares-data script"), spec = JSON.parse(data.textContent);
  const series = rising.map((points, at) => ({ ...spec.series[0], name: String(at), points }));
  data.textContent = JSON.stringify({ ...spec, series });
  document.dispatchEvent(new CustomEvent("page:changed"));
}
"""
"""Draws other areas in the place of the first ones."""

Corner = tuple[float, float]


def read(page: Page, figure: str) -> dict[str, Any]:
    canvas = page.locator(f"#{figure} canvas")
    expect(canvas).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
    found: dict[str, Any] = canvas.evaluate(READ)
    return found


def places(found: dict[str, Any], points: list[list[float]]) -> list[Corner]:
    """Data as pixels."""
    at = found["scale"]

    def pixel(value: float, axis: str) -> float:
        part = (value - at[f"{axis}min"]) / (at[f"{axis}max"] - at[f"{axis}min"])
        return float(at[f"{axis}0"] + part * (at[f"{axis}1"] - at[f"{axis}0"]))

    return [(pixel(x, "x"), pixel(y, "y")) for x, y in points]


def stepped(corners: list[Corner]) -> list[Corner]:
    found = corners[:1]
    for x, y in corners[1:]:
        found += [(x, found[-1][1]), (x, y)]
    return found


def lies_on(corner: Corner, line: list[Corner]) -> bool:
    """Whether a corner lies on a line of corners, within a pixel."""
    x, y = corner
    for (x1, y1), (x2, y2) in pairwise(line):
        if min(x1, x2) - 1 <= x <= max(x1, x2) + 1 and min(y1, y2) - 1 <= y <= max(y1, y2) + 1:
            across = abs((x2 - x1) * (y1 - y) - (x1 - x) * (y2 - y1))
            if across <= max(1.0, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5):
                return True
    return False


def check_lines(found: dict[str, Any]) -> int:
    """Compare each drawn line with its data, both ways; return the number of lines."""
    checked = 0
    for series, (colour, _) in zip(found["spec"]["series"], found["colours"], strict=True):
        if series["kind"] not in {"line", "step"} or len(series["points"]) < 2:
            continue
        corners = places(found, series["points"])
        expected = stepped(corners) if series["kind"] == "step" else corners
        strokes = [path["points"] for path in found["paths"] if path["how"] == "stroke" and path["colour"] == colour]
        strokes = [path for path in strokes if len(path) > 1 and all(lies_on(tuple(each), expected) for each in path)]
        assert strokes, f"nothing drawn follows {series['name']}"
        longest = [tuple(each) for each in max(strokes, key=len)]
        assert all(lies_on(each, longest) for each in expected), series["name"]
        checked += 1
    return checked


def check_areas(found: dict[str, Any]) -> int:
    """Check that fills have no slopes, and that their heights are those of the data; return the number of areas."""
    below = [0.0] * len(found["spec"]["series"][0]["points"])
    areas = [series for series in found["spec"]["series"] if series["kind"] == "area"]
    fills = [path["points"] for path in found["paths"] if path["how"] == "fill" and len(path["points"]) > 3]
    for series in areas:
        top = [low + y for low, (_, y) in zip(below, series["points"], strict=True)]
        edge = stepped(places(found, [[x, y] for (x, _), y in zip(series["points"], top, strict=True)]))
        edge.pop()  # the last step has no width
        mine = [
            path for path in fills if sum(lies_on(each, [tuple(one) for one in path]) for each in edge) == len(edge)
        ]
        assert mine, f"no fill has the heights of {series['name']}"
        below = top
    for path in fills:
        wide = [((x1, y1), (x2, y2)) for (x1, y1), (x2, y2) in pairwise(path) if abs(x1 - x2) > 1 and abs(y1 - y2) > 1]
        assert not wide, "an edge is a slope: spending that never happened"
    return len(areas)


@pytest.fixture(scope="module")
def recording(browser: Browser, server: LiveServer) -> Iterator[Page]:
    """A page that notes what is drawn."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(SLOWEST)
    context.add_init_script(RECORD)
    context.add_cookies([session_cookie(server, "viewer")])
    yield context.new_page()
    context.close()


def test_spending_over_time_has_steps(recording: Page, server: LiveServer, hospital: Hospital) -> None:
    recording.goto(f"{server.url}/accounts/{hospital.ids['imaging']}")
    assert check_lines(read(recording, "curve")) >= 4
    assert check_areas(read(recording, "shares")) == 2


def test_areas_of_many_close_steps_are_filled(recording: Page) -> None:
    """Half of it in one pixel, as after a burst of requests."""
    chance = random.Random(7)  # noqa: S311 - no secrets
    start, day = 1_700_000_000_000, 86_400_000
    times = sorted([start + chance.uniform(0, 40) * day for _ in range(30)] + [start + 20 * day + k for k in range(30)])
    rising = [sorted(chance.uniform(0, 30) for _ in times) for _ in range(3)]
    recording.evaluate(REDRAW, [list(map(list, zip(times, each, strict=True))) for each in rising])
    assert check_areas(read(recording, "shares")) == 3
    recording.locator("#shares canvas").hover(position={"x": 300, "y": 100})
    shown = recording.evaluate(
        "Chart.getChart(document.querySelector('#shares canvas')).tooltip.body.map((each) => each.lines)"
    )
    assert len(shown) == 3, "a corner is no point"


def test_epsilon_over_steps_goes_through_its_points(recording: Page, server: LiveServer, hospital: Hospital) -> None:
    recording.goto(f"{server.url}/runs/{hospital.refused}")
    assert check_lines(read(recording, "curve")) >= 2
    traits = recording.locator("figure.chart").evaluate_all("all => all.map((each) => each.id)")
    for trait in traits:
        if trait != "curve":
            assert check_lines(read(recording, trait)) == 1


def test_lines_of_planner_go_through_their_points(recording: Page, server: LiveServer) -> None:
    recording.goto(f"{server.url}/planner")
    found = read(recording, "growth")
    assert check_lines(found) >= 3
    colours = [colour for colour, _ in found["colours"]]
    assert len(set(colours)) == len(colours), "each line has its own colour"
    recording.emulate_media(color_scheme="dark")
    recording.wait_for_timeout(200)  # what listens to the colours is told before a frame
    dark = [colour for colour, _ in read(recording, "growth")["colours"]]
    assert dark[0] != colours[0]
    assert len(set(dark)) == len(dark), "in the dark, too"
