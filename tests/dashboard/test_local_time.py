"""Times are shown in the zone of the browser, which is named; UTC is on hover, and shown without script."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.sample_hospital import Hospital
from tests.soak import thinned

LABELS = (
    "Chart.getChart(document.querySelector('#curve canvas')).scales.x.ticks.map(({ value, label }) => [value, label])"
)
TITLE = "Chart.getChart(document.querySelector('#curve canvas')).options.scales.x.title.text"


@pytest.mark.parametrize(
    ("zone", "names"),
    thinned(
        [
            ("Europe/Berlin", {"CET", "CEST"}),
            ("America/New_York", {"EST", "EDT"}),
            ("Asia/Kolkata", {"IST"}),
            ("Asia/Kathmandu", {"UTC+5:45"}),
            ("UTC", {"UTC"}),
        ],
        3,
    ),
)
def test_times_are_those_of_the_browser(
    browser: Browser, server: LiveServer, hospital: Hospital, sign_in: SignIn, zone: str, names: set[str]
) -> None:
    context = browser.new_context(timezone_id=zone)
    page = context.new_page()
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/accounts/{hospital.ids['imaging']}")
    expect(page.locator("#curve canvas")).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
    page.locator("summary", has_text="Show as a table").first.click()
    for time in page.locator("time").all()[:60]:
        exact = datetime.fromisoformat(time.get_attribute("datetime") or "").astimezone(UTC)
        local = exact.astimezone(ZoneInfo(zone))
        text = time.text_content() or ""
        assert text.startswith(f"{local.day} "), (text, local)
        assert f"{local:%Y, %H:%M} " in text
        assert text.rpartition(" ")[2] in names
        assert time.get_attribute("title") == f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    assert page.locator("#curve-table time").count() > 5, "the table of a chart, too"
    assert page.evaluate(TITLE) in {f"Time ({name})" for name in names}
    ticks = page.evaluate(LABELS)
    assert len(ticks) >= 2
    for value, label in ticks:
        local = datetime.fromtimestamp(value / 1000, ZoneInfo(zone))
        assert label in {f"{local:%Y-%m-%d}", f"{local:%H:%M}", f"{local:%m-%d %H:%M}", f"{local:%m-%d}"}
        assert (local.minute, local.second) == (0, 0), "a whole hour"
    context.close()


def test_ticks_stand_at_midnight_when_the_clocks_change(browser: Browser, server: LiveServer, sign_in: SignIn) -> None:
    context = browser.new_context(timezone_id="Europe/Berlin")
    page = context.new_page()
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/planner")
    expect(page.locator("#growth canvas")).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
    start = datetime(2026, 10, 23, 12, tzinfo=UTC)
    ticks = page.evaluate(
        """([first, last]) => {
          const figure = document.querySelector("#growth"), data = figure.querySelector("script");
          const series = [{ name: "a", kind: "step", role: null, points: [[first, 0], [last, 1]] }];
          const x = { label: "", kind: "time", from: null };
          data.textContent = JSON.stringify({ ...JSON.parse(data.textContent), x, series });
          document.dispatchEvent(new CustomEvent("page:changed"));
          return Chart.getChart(figure.querySelector("canvas")).scales.x.ticks.map(({ value }) => value);
        }""",
        [start.timestamp() * 1000, (start + timedelta(days=5)).timestamp() * 1000],
    )
    hours = {datetime.fromtimestamp(at / 1000, ZoneInfo("Europe/Berlin")).hour for at in ticks}
    assert hours == {0}, "winter time begins on 25 October"
    context.close()


def test_news_keep_the_zone(browser: Browser, changing: LiveServer, sign_in: SignIn) -> None:
    context = browser.new_context(timezone_id="Asia/Kolkata")
    page = context.new_page()
    sign_in(page, changing, "viewer")
    with changing.client("trainer") as trainer:
        event = {"type": "gaussian", "noise_multiplier": 50.0}
        made = trainer.post("/v1/runs", json={"name": "zoned", "budget": "mimic/readmission", "event": event})
        assert made.status_code == 201, made.text
    row = page.get_by_role("region", name="Unfinished runs").get_by_role("row", name="zoned")
    expect(row.locator("time")).to_contain_text("IST")
    expect(page.locator("#live")).to_contain_text("IST")
    context.close()


def test_without_script_utc_is_named(browser: Browser, server: LiveServer, sign_in: SignIn) -> None:
    context = browser.new_context(java_script_enabled=False, timezone_id="Asia/Kolkata")
    page = context.new_page()
    sign_in(page, server, "viewer")
    times = page.locator("time").all_text_contents()
    assert times
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", each) for each in times)
    context.close()
