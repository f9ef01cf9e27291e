"""What only scripts do on pages: news, answers while one types, local times, copies, and the description of the API."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import Enter
from tests.dashboard.page_actions import hindrances
from tests.dashboard.sample_hospital import Hospital, dp_sgd
from tests.soak import thinned

ZONES = [
    ("Europe/Berlin", {"CET", "CEST"}),
    ("America/New_York", {"EST", "EDT"}),
    ("Asia/Kolkata", {"IST"}),
    ("Asia/Kathmandu", {"UTC+5:45"}),
    ("UTC", {"UTC"}),
]
POLL = 4500
"""Milliseconds after which a page has asked for news."""

TICKS = """([first, last]) => {
  const figure = document.querySelector("#growth"), data = figure.querySelector("script");
  const series = [{ name: "a", kind: "step", role: null, points: [[first, 0], [last, 1]] }];
  const x = { label: "", kind: "time", from: null };
  data.textContent = JSON.stringify({ ...JSON.parse(data.textContent), x, series });
  document.dispatchEvent(new CustomEvent("page:changed"));
  return Chart.getChart(figure.querySelector("canvas")).scales.x.ticks.map(({ value }) => value);
}"""


def chart(place: str, what: str) -> str:
    """The script that reads something of a chart."""
    return f"Chart.getChart(document.querySelector('#{place} canvas')).{what}"


def await_drawn(page: Page, place: str) -> Locator:
    canvas = page.locator(f"#{place} canvas")
    expect(canvas).to_have_attribute("data-drawn", re.compile(r"^[1-9]\d*$"))
    return canvas


def await_change(page: Page, script: str, before: object) -> object:
    """Wait until a script gives something else; from outside, since pages let nobody evaluate words in them."""
    for _ in range(400):
        if (now := page.evaluate(script)) != before:
            return now
        page.wait_for_timeout(50)
    raise AssertionError(f"{script} is still {before!r:.200}")


def register_run(server: LiveServer, name: str, count: int = 0) -> str:
    with server.client("trainer") as api:
        body = {"name": name, "budget": "mimic/readmission", "event": dp_sgd(2.0, 0.01)}
        run = str(api.post("/v1/runs", json=body).json()["id"])
        if count:
            assert api.post(f"/v1/runs/{run}/steps", json={"count": count}).status_code == 200
    return run


def test_news_appear_and_what_is_in_use_stays(enter: Enter, server: LiveServer) -> None:
    page = enter("viewer", fails=True, timezone_id="Asia/Kolkata")
    page.clock.install()
    page.reload()
    region, live = page.get_by_role("region", name="Unfinished runs"), page.locator("#live")
    first = region.locator("tbody tr").first
    find = page.get_by_label("Find")
    find.fill("not sent yet")
    register_run(server, "new-run", 25)
    page.clock.fast_forward(POLL)
    expect(first).to_contain_text("new-run")
    expect(first).to_contain_text("25")
    expect(first.locator("time")).to_contain_text("IST")
    expect(live).to_contain_text("IST")
    expect(find).to_have_value("not sent yet")
    assert find.evaluate("element => element === document.activeElement")

    page.evaluate(
        "document.getElementById('runs').insertAdjacentHTML('beforeend', '<dialog id=\"asked\">Sure?</dialog>');"
        "document.getElementById('asked').showModal()"
    )
    register_run(server, "later")
    before = live.inner_text()
    page.clock.fast_forward(POLL)
    expect(live).not_to_have_text(before)
    expect(page.locator("#asked")).to_be_visible()
    expect(region).not_to_contain_text("later")
    page.evaluate("document.getElementById('asked').close()")
    page.clock.fast_forward(POLL)
    expect(region).to_contain_text("later")

    page.route(f"{server.url}/", lambda route: route.fulfill(status=403, content_type="text/html", body="<p>No.</p>"))
    page.clock.fast_forward(POLL)
    expect(live).to_contain_text("may be out of date")


def test_curve_of_run_grows_and_follows_the_colours(enter: Enter, server: LiveServer) -> None:
    run = register_run(server, "growing")
    page = enter("viewer", f"/runs/{run}", color_scheme="light")
    page.clock.install()
    page.reload()
    curve, canvas = page.locator("#curve"), await_drawn(page, "curve")
    assert "Epsilon over steps" in (canvas.get_attribute("aria-label") or "")
    curve.get_by_text("Show as a table").click()
    expect(curve.locator("th[scope=col]").nth(1)).to_have_text("If it goes on")
    picture = canvas.evaluate("each => each.toDataURL()")
    with server.client("trainer") as api:
        for count, steps in ((40, "40"), (60, "100")):
            assert api.post(f"/v1/runs/{run}/steps", json={"count": count}).status_code == 200
            page.clock.fast_forward(POLL)
            expect(page.locator("#facts dd").nth(4)).to_contain_text(re.compile(rf"^\s*{steps}"))
            expect(curve.locator("tbody th", has_text=re.compile(rf"^{steps}$"))).to_be_visible()
    expect(curve.locator("th[scope=col]").nth(1)).to_have_text("Epsilon")
    await_change(page, "document.querySelector('#curve canvas').toDataURL()", picture)
    colour = chart("curve", "data.datasets[0].borderColor")
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    dark = await_change(page, colour, light)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(colour) == light, "it is printed on white"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(colour) == dark


@pytest.mark.parametrize(("zone", "names"), thinned(ZONES, 5))
def test_account_page_has_local_times_and_answers_while_one_types(
    enter: Enter, hospital: Hospital, zone: str, names: set[str]
) -> None:
    page = enter("viewer", f"/accounts/{hospital.ids['stroke-registry/outcome-models']}", timezone_id=zone)
    await_drawn(page, "curve")
    times = page.locator("time").evaluate_all("all => all.map((each) => [each.dateTime, each.textContent, each.title])")
    assert len(times) > 20
    for when, text, title in times:
        exact = datetime.fromisoformat(when).astimezone(UTC)
        local = exact.astimezone(ZoneInfo(zone))
        assert text.startswith(f"{local.day} "), (text, local)
        assert f"{local:%Y, %H:%M} " in text
        assert text.rpartition(" ")[2] in names
        assert title == f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    assert page.locator("#curve-table time").count() > 5, "the table of a chart, too"
    assert page.evaluate(chart("curve", "options.scales.x.title.text")) in {f"Time ({name})" for name in names}
    ticks = page.evaluate(chart("curve", "scales.x.ticks.map(({ value, label }) => [value, label])"))
    assert len(ticks) >= 2
    for value, label in ticks:
        local = datetime.fromtimestamp(value / 1000, ZoneInfo(zone))
        assert label in {f"{local:%Y-%m-%d}", f"{local:%H:%M}", f"{local:%m-%d %H:%M}", f"{local:%m-%d}"}
        assert (local.minute, local.second) == (0, 0), "a whole hour"

    answer = page.locator("#answer")
    expect(answer).to_contain_text("It does not fit")
    page.get_by_label("Steps", exact=True).fill("1")
    page.get_by_label("Sampling probability").fill("0.0001")
    expect(answer).to_contain_text("It fits")
    expect(page).to_have_url(re.compile(r"steps=1&noise=1\.1&rate=0\.0001"))
    steps = page.get_by_label("Steps", exact=True)
    expect(steps).to_have_attribute("aria-invalid", "false")
    steps.fill("0")
    expect(steps).to_have_css("border-top-width", "2px")


def test_form_says_what_becomes_of_a_limit(enter: Enter) -> None:
    page = enter("planner", "/approvals?account=mimic/icu-team")
    change, button_shown = page.locator("[data-change]"), page.locator("form[data-limit] button")
    expect(change).to_have_text("This is the present limit.")
    for value, said, button_said in (
        ("2", "Epsilon falls from 3 to 2, delta stays 1e-6. This lowers the limit, which needs the role", "Lower"),
        ("4.5", "Epsilon rises from 3 to 4.5, delta stays 1e-6. This raises the limit, which needs another", "Propose"),
        ("", "Write positive numbers.", "Change the limit"),
    ):
        page.locator("#limit-epsilon").fill(value)
        expect(change).to_contain_text(said)
        expect(button_shown).to_contain_text(button_said)
    page.locator("#limit-unit").select_option("mu")
    expect(page.locator("#limit-epsilon")).to_be_hidden()
    page.locator("#limit-mu").fill("1")
    expect(change).to_contain_text("The unit becomes mu, which needs another")
    expect(button_shown).to_contain_text("Propose")


def test_planner_answers_while_one_slides(enter: Enter) -> None:
    page = enter("viewer", "/planner?budget=icu", timezone_id="Europe/Berlin", viewport={"width": 1280, "height": 900})
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    cost, canvas = page.locator("#cost"), await_drawn(page, "growth")
    expect(cost).to_contain_text("does not fit")
    canvas.scroll_into_view_if_needed()
    canvas.hover()
    told = page.evaluate(chart("growth", "tooltip.body.flatMap(({ lines }) => lines)"))
    for name in ("Epsilon", "Limit needed with a plan"):
        assert any(re.search(rf"{re.escape(name)}: \d", line) for line in told), told
    noise, slider = page.get_by_label("Noise multiplier", exact=True), page.get_by_label("Noise multiplier, slider")
    slider.focus()
    slider.fill(str(int(slider.input_value()) + 24))  # at once: as many requests as presses would be too many
    expect(page.locator("[aria-live=polite]").filter(has_text="Epsilon ")).to_contain_text("the plan fits")
    expect(cost).not_to_contain_text("does not fit")
    expect(slider).to_be_focused()
    chosen = float(noise.input_value())
    assert chosen > 1.28
    expect(page).to_have_url(re.compile(rf"noise={chosen}&.*budget=icu"))
    link = page.locator("#fitting").get_by_role("link")
    expect(link).to_have_attribute("href", re.compile(rf"noise={chosen}&rate=0.01"))
    noise.fill("0")
    expect(noise).to_have_attribute("aria-invalid", "true")
    expect(noise).to_have_accessible_description(re.compile("must be at least 0.001"))
    expect(cost).to_contain_text("No result yet")
    noise.fill("2")
    expect(cost).to_contain_text("steps fit the limit")
    expect(noise).not_to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Copy: python client").click()
    expect(page.locator("#message")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#python").inner_text()

    start = datetime(2026, 10, 23, 12, tzinfo=UTC)
    times = [start.timestamp() * 1000, (start + timedelta(days=5)).timestamp() * 1000]
    hours = {datetime.fromtimestamp(at / 1000, ZoneInfo("Europe/Berlin")).hour for at in page.evaluate(TICKS, times)}
    assert hours == {0}, "winter time begins on 25 October"


FIRST = """
new MutationObserver(() => {
  if (document.body && globalThis.first === undefined)
    globalThis.first = document.documentElement.classList.contains("dark-mode");
}).observe(document, { childList: true, subtree: true });
"""
"""Notes how the page is when it gets its body: before that, nothing is painted."""

BRIGHTNESS = """
() => Math.max(...getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number))
"""


def describe_populations_only(route: Route) -> None:
    """Leave the other operations out, whose forms take the browser seconds."""
    reply = route.fetch()
    described = reply.json()
    kept = {path: terms for path, terms in described["paths"].items() if path == "/v1/populations"}
    route.fulfill(response=reply, json=described | {"paths": kept})


def test_description_of_api_has_the_colours_of_the_browser_and_tries_a_read(enter: Enter, server: LiveServer) -> None:
    page = enter("viewer", "/sign-in", color_scheme="dark", viewport={"width": 400, "height": 800})
    page.route("**/openapi.json", describe_populations_only)
    hosts = set[str]()
    page.on("request", lambda asked: hosts.add(re.sub(r"^(\w+://[^/]*|data:).*", r"\1", asked.url, flags=re.DOTALL)))
    page.add_init_script(FIRST)
    page.goto(f"{server.url}/docs#/populations/listPopulations")
    operation = page.locator("#operations-populations-listPopulations")
    expect(operation).to_be_visible()
    assert page.evaluate("first") is True
    html = page.locator("html")
    assert page.evaluate(BRIGHTNESS) < 64
    page.emulate_media(color_scheme="light")
    expect(html).not_to_have_class(re.compile("dark-mode"))
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table .response-col_status").first).to_have_text("Code")
    expect(operation.locator(".live-responses-table")).to_contain_text("stroke-registry")
    assert hosts - {"data:"} == {server.url}


@pytest.mark.parametrize(
    ("width", "colours", "whole"),
    thinned([(1280, "light", False), (1280, "light", True), (400, "light", True), (400, "dark", True)], 4),
)
def test_description_of_api_is_accessible(
    enter: Enter, server: LiveServer, width: int, colours: str, *, whole: bool
) -> None:
    page = enter("admin", "/sign-in", color_scheme=colours, viewport={"width": width, "height": 800})
    if not whole:
        page.route("**/openapi.json", describe_populations_only)
    page.goto(f"{server.url}/docs")
    expect(page.locator(".opblock").first).to_be_visible()
    assert hindrances(page) == []
