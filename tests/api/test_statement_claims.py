"""What statements claim: of a run what it adds and the total, of a changed or exceeded limit what is left of it."""

from itertools import pairwise
from math import expm1
from typing import Any

import pytest

from app.service.audit import limit_history
from app.service.signing.ed25519 import is_signed_by
from tests.api.conftest import SeededLedger
from tests.api.trainer import approve
from tests.conftest import signing_key

NOISE = {"type": "gaussian", "noise_multiplier": 20.0}


def stated(seeded: SeededLedger, path: str) -> dict[str, Any]:
    document: dict[str, Any] = seeded.ledger.get(f"/v1/{path}/statement").raise_for_status().json()
    assert is_signed_by(document, signing_key()[1].read_bytes())
    return dict(document["payload"])


def page(seeded: SeededLedger, path: str) -> str:
    return seeded.ledger.get(f"/v1/{path}/statement.html").raise_for_status().text


def test_run_states_what_it_adds_and_the_total_of_its_people(seeded: SeededLedger) -> None:
    run, population = f"runs/{seeded.run}", f"populations/{seeded.population}"
    other = seeded.ledger.run(name="other")
    assert seeded.steps(run=other, event=NOISE).status_code == 200
    added, whole = stated(seeded, run), stated(seeded, population)
    assert [
        "everything outside of budget mimic/icu-team was computed from the same data" in added["loss"]["guarantee"],
        "with or without one patient" in added["loss"]["guarantee"],
        "no bound on the model alone" in added["loss"]["guarantee"],
        "together are within the limit of population mimic" in added["loss"]["guarantee"],
        "other runs on these people" in added["not_covered"][0],
    ] == [True] * 5
    assert "all that was released under population mimic is (epsilon, delta)-diff" in whole["loss"]["guarantee"]
    assert "Condition: everything released about these people was charged here." in whole["loss"]["guarantee"]
    assert "ompare two worlds" not in whole["loss"]["guarantee"]
    [total] = added["totals"]
    assert (total["population"], total["limit"]) == (seeded.population, whole["loss"]["limit"])
    same = ("epsilon", "limit", "in_words", "risk", "proven")
    assert {name: total[name] for name in same} == {name: whole["loss"][name] for name in same}
    assert added["loss"]["epsilon"] < total["epsilon"], "the other run is in the total only"
    text = page(seeded, run)
    for words in ("This run adds", "All releases about the people of mimic", "epsilon 1 at delta 1e-5", "epsilon 3 at"):
        assert words in text


def test_risk_is_that_of_the_limit_and_of_what_was_charged(seeded: SeededLedger) -> None:
    assert seeded.steps(event=NOISE, count=4).status_code == 200
    risk = stated(seeded, f"runs/{seeded.run}")["loss"]["risk"]
    assert risk["by_limit"]["advantage"] == pytest.approx((expm1(1) + 2e-5) / (expm1(1) + 2))
    assert risk["by_limit"]["singled_out_of_1000"] == 28
    assert 0 < risk["by_charges"]["advantage"] < risk["by_limit"]["advantage"]
    assert risk["by_charges"]["singled_out_of_1000"] <= 28
    text = page(seeded, f"runs/{seeded.run}")
    assert "advantage at most 46.3 %; at most 28 of 1,000 found" in text


def test_run_at_the_population_has_one_claim_and_two_numbers(seeded: SeededLedger) -> None:
    run = seeded.ledger.run(budget="mimic", name="direct")
    assert seeded.steps(run=run).status_code == 200
    said = stated(seeded, f"runs/{run}")
    assert said["loss"]["limit_of"] == seeded.population
    assert said["loss"]["in_words"] == said["totals"][0]["in_words"]
    assert page(seeded, f"runs/{run}").count("nobody can tell better than that") == 1
    assert [each["path"] for each in said["limits"]] == ["mimic"]


def test_report_over_the_limit_is_named_as_the_cause(seeded: SeededLedger) -> None:
    assert seeded.steps(count=10**5, mode="report").json()["overdrawn"]
    for path in (f"runs/{seeded.run}", f"populations/{seeded.population}"):
        said = stated(seeded, path)
        loss = said["loss"]
        assert loss["epsilon"] > loss["limit"]["epsilon"]
        assert loss["limit_needed"] > loss["limit"]["epsilon"]
        assert (loss["exceeded"]["cause"], loss["exceeded"]["lowered_at"], loss["proven"]) == ("reported", None, None)
        assert loss["exceeded"]["reported_at"] == said["period"]["last"]
        assert "at the limit nothing is proven" in loss["guarantee"]
        assert "at its limit" not in loss["guarantee"]
        assert "reported after they had happened" in loss["in_words"][0]
        assert "limit was lowered" not in loss["in_words"][0]
        text = page(seeded, path)
        assert "within the limit of" not in text
        assert "(exceeded)" in text
        assert "not bounded" in text


def test_lowered_limit_is_named_as_the_cause(seeded: SeededLedger) -> None:
    assert seeded.steps(count=50).status_code == 200
    assert seeded.ledger.set_limit(seeded.budget, 0.1, "budget_admin").status_code == 200
    loss = stated(seeded, f"runs/{seeded.run}")["loss"]
    assert (loss["exceeded"]["cause"], loss["exceeded"]["reported_at"]) == ("lowered", None)
    assert "at the limit nothing is proven" in loss["guarantee"]
    assert "The limit was lowered later" in loss["in_words"][0]
    assert "reported after" not in loss["in_words"][0]
    assert seeded.steps(mode="report").json()["overdrawn"]
    loss = stated(seeded, f"runs/{seeded.run}")["loss"]
    assert loss["exceeded"]["cause"] == "reported_and_lowered"
    assert "Both happened" in loss["in_words"][0]
    whole = stated(seeded, f"populations/{seeded.population}")["loss"]
    assert (whole["exceeded"], whole["proven"]) == (None, whole["limit"]), "its own limit holds"


def test_changed_limit_holds_at_the_largest_that_was_in_force(seeded: SeededLedger) -> None:
    assert seeded.steps(count=50).status_code == 200
    for revision, epsilon in enumerate((0.99, 0.98), 1):
        assert seeded.ledger.set_limit(seeded.budget, epsilon, "budget_admin").status_code == 200
        loss = stated(seeded, f"runs/{seeded.run}")["loss"]
        assert (loss["limit_revision"], loss["limit"]["epsilon"]) == (revision, epsilon)
        assert "No limit in force exceeded epsilon 1 at delta 1e-5" in loss["guarantee"]
        assert "of its limit" not in loss["guarantee"]
        assert (loss["proven"], loss["exceeded"]) == ({"epsilon": 1.0, "delta": 1e-5}, None)
        assert "stays within epsilon 1 at delta 1e-5" in loss["in_words"][0]


def test_limits_have_those_who_set_and_approved_them(seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"role": "privacy_officer", "name": "Data protection officer"}
    seeded.ledger.keys["hospital", "officer"] = seeded.ledger.post("/v1/api-keys", named).json()["key"]
    approve(seeded.ledger, seeded.ledger.set_limit(seeded.budget, 1.5, "planner"), "officer")
    assert seeded.ledger.set_limit(seeded.budget, 1.2, "officer").status_code == 200
    budget, population = stated(seeded, f"runs/{seeded.run}")["limits"]
    assert [(each["limit"]["epsilon"], each["approved_by"]) for each in budget["limits"]] == [
        (1.0, None),
        (1.5, "Data protection officer (privacy officer)"),
        (1.2, None),
    ]
    assert all(first["since"] <= second["since"] for first, second in pairwise(budget["limits"]))
    assert [
        each["set_by"].endswith(role)
        for each, role in zip(budget["limits"], ("(admin)", "(planner)", "officer)"), strict=True)
    ]
    assert [each["reason"] for each in budget["limits"]] == [None, "The board has met.", "The board has met."]
    assert len(population["limits"]) == 1
    assert "Data protection officer (privacy officer)" in page(seeded, f"runs/{seeded.run}")
    monkeypatch.setattr(limit_history, "MOST_LIMITS", 2)
    assert [each["limit"]["epsilon"] for each in stated(seeded, f"runs/{seeded.run}")["limits"][0]["limits"]] == [
        1.5,
        1.2,
    ]


def test_population_that_two_persons_opened_has_its_approver(seeded: SeededLedger) -> None:
    assert seeded.ledger.set_policy({"approvers_to_create_population": 2}).is_success
    terms = {"name": "imaging", "privacy_unit": "patient", "neighboring_relation": "replace_one"}
    limit = {"limit": {"epsilon": 2.0, "delta": 1e-6}}
    approve(seeded.ledger, seeded.ledger.post("/v1/populations", terms | limit))
    [found] = seeded.ledger.get("/v1/populations?name=imaging").json()["items"]
    said = stated(seeded, f"populations/{found['id']}")
    [first] = said["limits"][0]["limits"]
    assert first["set_by"].endswith("(admin)")
    assert first["approved_by"].endswith("(privacy officer)")
    assert (said["period"], said["steps"], said["mechanisms_in_words"]) == (None, 0, [])
    assert "with one patient&#x27;s records or with another&#x27;s in their place" in page(
        seeded, f"populations/{found['id']}"
    )
