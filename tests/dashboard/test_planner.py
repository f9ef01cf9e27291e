"""The planner: numbers are slid, the price is there at once, and what can be copied runs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from app.dashboard.formatting import spent
from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.html_reader import without_breaks
from tests.dashboard.page_actions import browser_client, scoped_client
from tests.dashboard.sample_hospital import Hospital, dp_sgd

BY_BATCH = "sampling=batch&batch=600&size=60000"


@pytest.fixture
def visitor(server: LiveServer) -> Iterator[httpx2.Client]:
    with browser_client(server, "viewer") as client:
        yield client


def test_sliding_a_number_answers_at_once_and_has_an_address(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/planner?budget=icu")
    cost = page.locator("#cost")
    expect(cost).to_contain_text("does not fit")
    expect(page.locator("#growth canvas")).to_have_attribute("data-drawn", re.compile(r"\d+"))
    slider = page.get_by_label("Noise multiplier, slider")
    slider.focus()
    for _ in range(24):
        slider.press("ArrowRight")
    expect(cost).to_contain_text("fits")
    expect(cost).not_to_contain_text("does not fit")
    expect(page.locator("[aria-live=polite]").filter(has_text="Limit needed:")).to_contain_text("the plan fits")
    expect(slider).to_be_focused()
    noise = float(page.get_by_label("Noise multiplier", exact=True).input_value())
    assert noise > 1.28
    expect(page).to_have_url(re.compile(rf"noise={noise}&.*budget=icu"))
    with server.client("viewer") as api:
        plan = {"events": [{"event": dp_sgd(noise, 0.01), "count": 5000}], "delta": 1e-5}
        answer = api.post("/v1/accounting/epsilon", json=plan).json()
    for each in answer["accountants"]:
        expect(page.locator("#side")).to_contain_text(spent(float(each["epsilon"])))
    expect(page.locator("#fitting").get_by_role("link")).to_have_attribute(
        "href", re.compile(rf"noise={noise}&rate=0.01")
    )
    page.reload()
    expect(page.get_by_label("Noise multiplier", exact=True)).to_have_value(str(noise))


def test_what_is_out_of_bounds_is_told_at_its_field(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/planner")
    noise = page.get_by_label("Noise multiplier", exact=True)
    noise.fill("0")
    expect(noise).to_have_attribute("aria-invalid", "true")
    expect(noise).to_have_accessible_description(re.compile("must be at least 0.001"))
    expect(page.locator("#cost")).to_contain_text("No result yet")
    noise.fill("2")
    expect(page.locator("#cost")).to_contain_text("steps fit the limit")
    expect(noise).not_to_have_attribute("aria-invalid", "true")


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("noise=abc", "noise", "write a number, such as 1.5 or 1e-5"),
        ("noise=nan", "noise", "write a finite number"),
        ("steps=1.5", "steps", "write a whole number, such as 5000"),
        ("steps=0", "steps", "must be at least 1"),
        ("rate=1.1", "rate", "must be at most 1"),
        ("delta=0.5", "delta", "must be less than 0.5"),
        ("epsilon=0", "epsilon", "must be greater than 0"),
        ("sampling=batch&batch=9&size=8", "batch", "must not exceed the data set size"),
    ],
)
def test_every_bound_is_told_in_words(visitor: httpx2.Client, query: str, field: str, words: str) -> None:
    reply = visitor.get(f"/planner?{query}")
    assert reply.status_code == 200
    assert f'id="{field}-fault" data-live>{words}</span>' in reply.text
    assert reply.text.count('aria-invalid="true"') == 1


def test_what_was_written_stays_and_is_text(visitor: httpx2.Client) -> None:
    text = visitor.get("/planner", params={"noise": '"><b>', "budget": "<i>"}).text
    assert 'value="&#34;&gt;&lt;b&gt;"' in text
    assert "<b>" not in text
    assert "<i>" not in text


def test_under_replace_one_batches_need_their_size(visitor: httpx2.Client) -> None:
    assert "No known bound for this plan" in visitor.get("/planner?relation=replace_one").text
    fixed = visitor.get(f"/planner?relation=replace_one&noise=4&{BY_BATCH}").text
    assert "sampled_without_replacement" in fixed
    assert "No known bound" not in fixed
    assert fixed.count("no known bound") == 2  # by privacy loss distributions
    for title in ("Ledger, plan declared", "PLD, fixed in advance"):
        assert "no known bound" in fixed.split(title)[1].split("</tr>")[0]
    assert "A plan cannot hold a batch of fixed size under replace_one" in fixed
    assert "the noise counts half" in fixed
    assert "Limit needed, no plan" in fixed
    assert "Limit needed, planned" in visitor.get("/planner").text


def test_a_declared_plan_stands_beside_none(visitor: httpx2.Client) -> None:
    text = visitor.get("/planner?noise=1.1&rate=0.01&steps=1600&epsilon=2").text
    assert "does not fit" not in text
    steps = re.search(r"<strong>([^<]+) steps</strong> fit the limit; without a plan, ([^<]+)\.</li>", text)
    noise = re.search(r"<strong>noise ([\d.]+)</strong>.*without a plan, with noise ([\d.]+)\.</li>", text)
    assert steps is not None
    assert noise is not None
    with_plan, without = (int(re.sub(r"\D", "", each)) for each in steps.groups())
    assert with_plan > 1600 > without
    assert float(noise[1]) < 1.1 < float(noise[2])


def test_the_chart_draws_what_the_api_answers(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/planner?noise=1.1&rate=0.01&steps=3000&delta=1e-05")
    expect(page.locator("#growth canvas")).to_have_attribute("data-drawn", re.compile(r"\d+"))
    drawn = page.evaluate(
        "Chart.getChart(document.querySelector('#growth canvas')).data.datasets"
        ".map(({ label, data }) => [label, data.map(({ x, y }) => [x, y])])"
    )
    lines = dict(drawn)
    assert list(lines) == [
        "Limit needed, planned",
        "RDP accountants",
        *(f"Noise {noise}" for noise in ("0.825", "1.65", "2.2")),
        "Limit",
    ]
    needed, printed = lines["Limit needed, planned"], lines["RDP accountants"]
    assert len({tuple(x for x, _ in line) for name, line in lines.items() if name != "Limit"}) == 1
    with server.client("viewer") as api:
        for noise, line in ((1.1, needed), (1.65, lines["Noise 1.65"])):
            for at in range(0, len(line), 4):
                step, epsilon = line[at]
                plan = {"events": [{"event": dp_sgd(noise, 0.01), "count": step}], "delta": 1e-5}
                (point,) = api.post("/v1/accounting/trajectory", json=plan | {"max_points": 1}).json()["points"]
                assert epsilon == pytest.approx(point["required_epsilon"], rel=1e-3)
                alone = api.post("/v1/accounting/epsilon", json=plan).json()
                assert alone["required_epsilon"] <= epsilon <= 1.001 * alone["required_epsilon"]
                if noise == 1.1:
                    assert printed[at] == [step, pytest.approx(alone["epsilon"], rel=1e-8)]
    whole = page.locator("#cost").inner_text()
    assert spent(needed[-1][1]) in whole
    assert spent(printed[-1][1]) in whole


def test_a_tooltip_shows_both_numbers(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/planner")
    canvas = page.locator("#growth canvas")
    expect(canvas).to_have_attribute("data-drawn", re.compile(r"\d+"))
    canvas.scroll_into_view_if_needed()
    canvas.hover()
    told = page.evaluate(
        "Chart.getChart(document.querySelector('#growth canvas')).tooltip.body.flatMap(({ lines }) => lines)"
    )
    for name in ("Limit needed, planned", "RDP accountants"):
        assert any(re.search(rf"{re.escape(name)}: \d", line) for line in told), told


def test_nothing_is_sampled_with_a_probability_of_one(visitor: httpx2.Client) -> None:
    text = visitor.get("/planner?rate=1&noise=40&steps=10").text
    assert "zCDP" in text
    assert "Analytic Gaussian" in text
    assert "poisson_sampled" not in text


def test_an_infinite_loss_is_an_answer(visitor: httpx2.Client) -> None:
    text = visitor.get("/planner?noise=0.001&rate=1&steps=1000000000").text
    assert "∞" in text
    assert "gives no protection" in text
    assert "does not fit" in text


def test_only_budgets_within_reach_are_offered(server: LiveServer, hospital: Hospital) -> None:
    with scoped_client(server, "viewer", hospital.ids["mimic/readmission"]) as client:
        text = without_breaks(client.get("/planner").text)
    assert "mimic/readmission/sweep" in text
    assert "icu-team" not in text


def test_a_poll_with_nothing_new_costs_a_304(visitor: httpx2.Client) -> None:
    part = {"X-Part": "page"}
    tag = visitor.get("/planner?noise=2", headers=part).headers["etag"]
    assert visitor.get("/planner?noise=2", headers=part | {"If-None-Match": tag}).status_code == 304
    assert visitor.get("/planner?noise=3", headers=part | {"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "noise=1.3&delta=1e-06",
        f"relation=replace_one&noise=4&{BY_BATCH}",
        "rate=1&noise=40&steps=10&relation=replace_special",
    ],
)
def test_what_can_be_copied_runs(server: LiveServer, visitor: httpx2.Client, query: str) -> None:
    text = visitor.get(f"/planner?{query}").text
    copies = {name: unescape(copy) for name, copy in re.findall(r'<pre id="(\w+)"[^>]*>(.*?)</pre>', text, re.DOTALL)}
    environment = os.environ | {
        "EPSILON_LEDGER_URL": server.url,
        "EPSILON_LEDGER_API_KEY": server.key("viewer"),
        "no_proxy": "*",
    }
    by_curl = _run(["bash", "-c", copies["curl"]], environment)
    answer = json.loads(by_curl)
    epsilon = answer["required_epsilon"]
    printed = _run([sys.executable, "-c", copies["python"]], environment)
    assert printed.startswith(f"limit needed: epsilon {epsilon:.4f} at delta")
    assert f"<dd>{spent(epsilon)}" in text
    assert f"<dd>{spent(answer['epsilon'])}" in text


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_button_copies(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/planner")
    page.get_by_role("button", name="Copy: python client").click()
    expect(page.locator("#message")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#python").inner_text()


def test_it_is_read_without_script(browser: Browser, server: LiveServer, sign_in: SignIn) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/planner")
    page.get_by_label("Noise multiplier").fill("1.5")
    page.get_by_label("by batch and data set size").check()
    page.get_by_label("Batch size").fill("300")
    page.get_by_role("button", name="Compute").click()
    expect(page.locator("#cost")).to_contain_text("fits")
    expect(page.locator("#growth table")).to_contain_text("Noise 2.25")
    expect(page.locator("#curl")).to_contain_text('"sampling_probability": 0.005')
    context.close()
