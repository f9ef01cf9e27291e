"""The planner: what a plan costs, in the numbers of the API, and in words where it has none."""

import json
import re
from html import unescape
from typing import Any

import pytest

from app.dashboard.formatting import epsilon
from tests.conftest import Ledger
from tests.dashboard.page_visitor import scoped_visitor, visitor, without_breaks
from tests.dashboard.sample_hospital import Hospital, dp_sgd

BY_BATCH = "sampling=batch&batch=600&size=60000&steps=50"


def test_number_out_of_bounds_is_named_at_its_field(sample: Ledger) -> None:
    person = visitor(sample)
    for query, field, words in (
        ("noise=abc", "noise", "write a number, such as 1.5 or 1e-5"),
        ("noise=nan", "noise", "write a finite number"),
        ("steps=1.5", "steps", "write a whole number, such as 5000"),
        ("steps=0", "steps", "must be at least 1"),
        ("rate=1.1", "rate", "must be at most 1"),
        ("delta=0.5", "delta", "must be less than 0.5"),
        ("epsilon=0", "epsilon", "must be greater than 0"),
        ("sampling=batch&batch=9&size=8", "batch", "must not exceed the data set size"),
    ):
        reply = person.open(f"/planner?{query}").reply
        assert reply.status_code == 200
        assert f'id="{field}-fault" data-live>{words}</span>' in reply.text
        assert reply.text.count('aria-invalid="true"') == 1
    text = person.open("/planner?noise=%22%3E%3Cb%3E&budget=%3Ci%3E").reply.text
    assert 'value="&#34;&gt;&lt;b&gt;"' in text
    assert "<b>" not in text
    assert "<i>" not in text


def test_replace_one_has_a_bound_for_samples_and_for_batches_of_known_size(sample: Ledger) -> None:
    sampled = visitor(sample).open("/planner?relation=replace_one").reply.text
    assert "Limit needed with a plan" in sampled
    fixed = visitor(sample).open(f"/planner?relation=replace_one&noise=4&{BY_BATCH}").reply.text
    assert "sampled_without_replacement" in fixed
    assert "No known bound" not in fixed
    assert fixed.count("no known bound") == 1
    assert "no known bound" in fixed.split("PLD accountants")[1].split("</tr>")[0]
    assert "A plan cannot hold a batch of fixed size under replace_one" in fixed
    assert "the noise counts half" in fixed


def test_declared_plan_is_compared_with_none(sample: Ledger) -> None:
    text = visitor(sample).open("/planner?noise=1.1&rate=0.01&steps=1600&epsilon=2").reply.text
    assert "does not fit" not in text
    steps = re.search(r"<dt>Steps</dt><dd>([^<]+)<small>fit a limit of 2 with a plan; ([^<]+) without</small>", text)
    noise = re.search(r"<strong>noise ([\d.]+)</strong>.*without a plan, with noise ([\d.]+)\.</p>", text)
    assert steps is not None
    assert noise is not None
    with_plan, without = (int(re.sub(r"\D", "", each)) for each in steps.groups())
    assert with_plan > 1600 > without
    assert float(noise[1]) < 1.1 < float(noise[2])


def test_sampling_probability_of_one_is_no_sampling_and_infinite_loss_is_a_result(sample: Ledger) -> None:
    text = visitor(sample).open("/planner?rate=1&noise=40&steps=10").reply.text
    assert "poisson_sampled" not in text
    text = visitor(sample).open("/planner?noise=0.001&rate=1&steps=1000000000").reply.text
    assert "∞" in text
    assert "gives almost no protection" in text
    assert "does not fit" in text


def computed(ledger: Ledger, what: str, noise: float, steps: float, **more: object) -> dict[str, Any]:
    """What the API answers to a plan."""
    plan = {"events": [{"event": dp_sgd(noise, 0.01), "count": int(steps)}], "delta": 1e-5}
    answer: dict[str, Any] = ledger.post(f"/v1/accounting/{what}", plan | more, "viewer").json()
    return answer


def said(loss: float) -> str:
    """An epsilon as a page says it."""
    return " ".join(epsilon(loss).split())


def test_lines_of_chart_are_the_numbers_of_api(sample: Ledger) -> None:
    page = visitor(sample).open("/planner?noise=1.1&rate=0.01&steps=3000&delta=1e-05")
    [drawn] = re.findall(r'<script type="application/json">(.*?)</script>', page.reply.text)
    lines = {each["name"]: each["points"] for each in json.loads(drawn)["series"]}
    others = [f"Epsilon, noise {noise}" for noise in ("0.825", "1.65", "2.2")]
    assert list(lines) == ["Epsilon", "Limit needed with a plan", *others, "Limit"]
    needed = dict(lines["Limit needed with a plan"])
    for noise, line in ((1.1, lines["Epsilon"]), (1.65, lines["Epsilon, noise 1.65"])):
        for step, drawn_there in line[::6]:
            alone = computed(sample, "epsilon", noise, step)
            assert drawn_there == pytest.approx(alone["epsilon"], rel=1e-8)
            if noise == 1.1:
                limit = alone["limit_needed"]["with_plan"]
                assert limit <= needed[step] <= 1.001 * limit
    whole = computed(sample, "epsilon", 1.1, 3000)
    for number in (whole["epsilon"], *whole["limit_needed"].values()):
        assert said(number) in page.part("cost")
        assert said(number) in page.part("side")
    printed = {each["name"]: each["epsilon"] for each in whole["comparisons"]}
    for name in ("rdp", "pld"):
        assert said(printed[name]) in page.part("side")


def test_fields_of_form_are_the_terms_of_a_plan(sample: Ledger) -> None:
    page = visitor(sample).open("/planner?noise=1.5&sampling=batch&batch=300&size=60000")
    assert "fits" in page.part("cost")
    assert "Epsilon, noise 2.25" in page.part("growth")
    assert '"sampling_probability": 0.005' in (page.get("curl").text or "")
    for name, value in {"noise": "1.5", "batch": "300", "size": "60000"}.items():
        [place] = [each for each in page.root.iter("input") if each.get("name") == name]
        assert float(place.get("value", "")) == float(value)


def test_key_of_account_is_offered_the_budgets_under_it(own_sample: Ledger, hospital: Hospital) -> None:
    text = without_breaks(
        scoped_visitor(own_sample, "viewer", hospital.ids["mimic/readmission"]).open("/planner").reply.text
    )
    assert "mimic/readmission/sweep" in text
    assert "icu-team" not in text


@pytest.mark.parametrize("query", ["noise=1.3&delta=1e-06", f"relation=replace_one&noise=4&{BY_BATCH}"])
def test_body_of_curl_line_has_the_numbers_of_the_page(sample: Ledger, query: str) -> None:
    text = visitor(sample).open(f"/planner?{query}").reply.text
    line = unescape(re.findall(r'<pre id="curl"[^>]*>(.*?)</pre>', text, re.DOTALL)[0])
    [body] = re.findall(r"'(\{.*\})'", line, re.DOTALL)
    answer = sample.post("/v1/accounting/epsilon", json.loads(body), "viewer").json()
    assert f"<dt>Limit needed</dt><dd>{epsilon(answer['limit_needed']['with_plan'])}" in text
    assert f"<dt>Epsilon</dt><dd>{epsilon(answer['epsilon'])}" in text
