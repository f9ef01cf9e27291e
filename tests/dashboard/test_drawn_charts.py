"""What the library of charts is told to draw is what the data say, and areas have steps."""

import random
import re
import struct
from itertools import accumulate, pairwise
from typing import Any

from playwright.sync_api import Page, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import Enter
from tests.dashboard.sample_hospital import Hospital

READ = """
(canvas) => {
  const { datasets } = Chart.getChart(canvas).data, script = canvas.closest("figure").querySelector("script");
  return { spec: JSON.parse(script.textContent), drawn: datasets.map((each) => (
    { data: each.data, stepped: each.stepped, line: each.showLine, fill: each.fill, colour: each.borderColor })) };
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


def read(page: Page, figure: str) -> dict[str, Any]:
    canvas = page.locator(f"#{figure} canvas")
    expect(canvas).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
    found: dict[str, Any] = canvas.evaluate(READ)
    return found


def stepped(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of steps: a value holds until the next point."""
    found = points[:1]
    for (x, y), (to_x, to_y) in pairwise(points):
        found += [(to_x, y), (to_x, to_y)] if x < to_x else [(to_x, to_y)]
    return found


def check(found: dict[str, Any], kinds: set[str]) -> int:
    """Compare what is drawn with the data; return the number of series of some kinds."""
    series = found["spec"]["series"]
    tops = accumulate(
        ([y for _, y in each["points"]] for each in series if each["kind"] == "area"),
        lambda under, own: [low + y for low, y in zip(under, own, strict=True)],
    )
    for each, drawn in zip(series, found["drawn"], strict=True):
        area, points = each["kind"] == "area", [(x, y) for x, y in each["points"]]
        if area:
            points = stepped([(x, top) for (x, _), top in zip(points, next(tops), strict=True)])
        assert [(corner["x"], corner["y"]) for corner in drawn["data"]] == points, each["name"]
        how = (each["kind"] == "step", each["kind"] != "points", "origin" if area else False)
        assert (drawn["stepped"], drawn["line"], drawn["fill"]) == how, each["name"]
    return len([each for each in series if each["kind"] in kinds])


def test_spending_over_time_has_steps(enter: Enter, hospital: Hospital) -> None:
    page = enter("viewer", f"/accounts/{hospital.ids['imaging']}")
    assert check(read(page, "curve"), {"line", "step"}) == 2
    assert check(read(page, "used"), {"line", "step"}) >= 3
    assert check(read(page, "shares"), {"area"}) == 2
    # Half of it in one pixel, as after a burst of requests.
    chance, start, day = random.Random(7), 1_700_000_000_000, 86_400_000  # noqa: S311 - no secrets
    times = sorted([start + chance.uniform(0, 40) * day for _ in range(30)] + [start + 20 * day + k for k in range(30)])
    rising = [sorted(chance.uniform(0, 30) for _ in times) for _ in range(3)]
    page.evaluate(REDRAW, [list(map(list, zip(times, each, strict=True))) for each in rising])
    assert check(read(page, "shares"), {"area"}) == 3
    page.locator("#shares canvas").hover(position={"x": 300, "y": 100})
    lines = "Chart.getChart(document.querySelector('#shares canvas')).tooltip.body.map((each) => each.lines)"
    assert len(page.evaluate(lines)) == 3, "a corner is no point"


def test_epsilon_over_steps_goes_through_its_points(enter: Enter, server: LiveServer, hospital: Hospital) -> None:
    page = enter("viewer", f"/runs/{hospital.refused}")
    assert check(read(page, "curve"), {"line", "step"}) >= 1
    with page.expect_download() as saved:
        page.locator("#curve").get_by_role("button", name="Save as PNG").click()
    assert saved.value.suggested_filename.endswith("Epsilon over steps.png")
    image = saved.value.path().read_bytes()
    size = page.locator("#curve canvas").evaluate("(canvas) => [canvas.width, canvas.height + 32]")
    assert (image[:8], list(struct.unpack(">II", image[16:24]))) == (b"\x89PNG\r\n\x1a\n", size), "with a title"
    traits = page.locator("figure.chart").evaluate_all("all => all.map((each) => each.id)")
    assert all(check(read(page, trait), {"line", "step"}) == 1 for trait in traits if trait != "curve")
    page.goto(f"{server.url}/planner")
    found = read(page, "growth")
    assert check(found, {"line", "step"}) >= 3
    colours = [each["colour"] for each in found["drawn"]]
    assert len(set(colours)) == len(colours), "each line has its own colour"
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(200)  # what listens to the colours is told before a frame
    dark = [each["colour"] for each in read(page, "growth")["drawn"]]
    assert dark[0] != colours[0]
    assert len(set(dark)) == len(dark), "in the dark, too"
