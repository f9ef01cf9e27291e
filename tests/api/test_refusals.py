"""Refusals: every number in them is one that the next request can rely on."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from app.accounting.curves import GRID_VERSION, orders
from app.api.schemas.refusals import REFUSED_EXAMPLE, refusal_text
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED, Ledger
from tests.persistence.dump import changed
from tests.soak import in_turns, thinned

LEVELS = ["run", "budget", "division", "population"]
PLANNED: dict[str, list[dict[str, Any]]] = {"run": [], "all": [{"event": SAMPLED}]}
"""A plan of the run alone, which its default event is, or of every account."""

LARGE = {"epsilon": 8.0, "delta": 1e-5}
SMALL = {"epsilon": 1.2, "delta": 1e-5}
PROBLEM = {"type", "title", "status", "detail", "code", "request_id"}
REFUSED = {
    *("decision", "run", "first_step", "count", "binding_account", "binding_account_path", "epsilon"),
    *("epsilon_requested", "epsilon_limit", "delta", "rdp", "delta_requested", "delta_left"),
    *("max_count_that_fits", "limit_change", "dry_run", "url"),
    *("steps_needed", "exhausted", "alternatives", "unavailable_alternatives"),
    *("attempt", "plan"),
}


def _gaussian(noise: float) -> dict[str, Any]:
    return {"type": "gaussian", "noise_multiplier": noise}


def _sampled(noise: float, sampling: float = 0.02) -> dict[str, Any]:
    return {"type": "poisson_sampled", "sampling_probability": sampling, "event": _gaussian(noise)}


def _tree(ledger: Ledger, level: str, planned: Sequence[dict[str, Any]] = ()) -> dict[str, str]:
    """A population, a division, a budget and a run, one of which has the small limit; their ids."""
    limits = {name: {"limit": SMALL if name == level else LARGE, "planned": list(planned)} for name in LEVELS}
    ids = {"population": str(ledger.population("people", **limits["population"])["id"])}
    ids["division"] = str(ledger.budget("division", "people", **limits["division"])["id"])
    ids["budget"] = str(ledger.budget("team", "people/division", **limits["budget"])["id"])
    return ids | {"run": ledger.run("people/division/team", **limits["run"])}


def more_noise(response: dict[str, Any]) -> float | None:
    """The noise multiplier that a refusal offers for all steps, if any."""
    offered = [each["noise_multiplier"] for each in response["alternatives"] if each["type"] == "more_noise"]
    return offered[0] if offered else None


def _ask(ledger: Ledger, run: str, body: dict[str, Any], *, dry: bool = True) -> dict[str, Any]:
    query = "?dry_run=true" if dry else ""
    reply = ledger.post(f"/v1/runs/{run}/steps{query}", body, "trainer")
    assert reply.status_code in {200, 403}, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


@pytest.mark.both_databases
def test_a_refusal_has_every_number_and_they_fit_together(seeded: SeededLedger) -> None:
    before, read = seeded.rows(), seeded.ledger.get(f"/v1/runs/{seeded.run}").content
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"count": 10_000, "first_step": 1}, "trainer")
    assert (reply.status_code, reply.headers["content-type"]) == (403, "application/problem+json")
    response = reply.json()
    assert set(response) == PROBLEM | REFUSED
    assert (response["type"], response["status"]) == ("urn:problem-type:epsilon-ledger:budget_exceeded", 403)
    assert (response["decision"], response["run"], response["first_step"], response["count"]) == (
        "refused",
        seeded.run,
        1,
        10_000,
    )
    assert (response["binding_account"], response["binding_account_path"]) == (seeded.budget, "mimic/icu-team")
    assert 0 < response["epsilon"] <= response["epsilon_limit"] == 1.0 <= response["epsilon_requested"]
    assert (response["delta"], response["dry_run"]) == (1e-5, False)
    rdp = response["rdp"]
    assert set(rdp) == {"order", "spent", "held", "requested", "limit"}
    assert rdp["order"] in orders(GRID_VERSION)
    assert 0 < rdp["spent"] <= rdp["limit"] < rdp["spent"] + rdp["held"] + rdp["requested"]
    assert rdp["held"] == 0
    assert 0 < response["max_count_that_fits"] < 10_000
    assert response["steps_needed"] == 10_000
    assert more_noise(response) is not None
    assert response["url"] == f"http://testserver/runs/{seeded.run}"
    assert "mimic/icu-team" in response["detail"]
    assert changed(before, seeded.rows()) == {"decisions", "runs"}
    assert seeded.ledger.get(f"/v1/runs/{seeded.run}").content == read


def test_an_infinite_request_is_told_as_infinite(seeded: SeededLedger) -> None:
    response = _ask(seeded.ledger, seeded.run, {"event": _gaussian(1e-3), "count": 10**9})
    assert response["epsilon_requested"] == "Infinity"
    assert "infinite" in response["detail"]
    assert response["rdp"]["requested"] == "Infinity" or response["rdp"]["requested"] > response["rdp"]["limit"]
    assert response["max_count_that_fits"] == 0


@pytest.mark.parametrize(("level", "planned"), in_turns(LEVELS, PLANNED))
def test_the_count_that_fits_is_exact_whoever_binds(ledger: Ledger, level: str, planned: str) -> None:
    ids = _tree(ledger, level, PLANNED[planned])
    for charged in (0, 7):
        if charged:
            assert _ask(ledger, ids["run"], {"count": charged}, dry=False)["decision"] == "admitted"
        response = _ask(ledger, ids["run"], {"count": 10**9})
        fitting = response["max_count_that_fits"]
        assert response["binding_account"] == ids[level]
        assert response["epsilon_limit"] == SMALL["epsilon"]
        assert fitting == ledger.get(f"/v1/runs/{ids['run']}").json()["steps_remaining"] > 0
        assert _ask(ledger, ids["run"], {"count": fitting})["decision"] == "admitted"
        more = _ask(ledger, ids["run"], {"count": fitting + 1})
        assert (more["decision"], more["max_count_that_fits"]) == ("refused", fitting)
    last = _ask(ledger, ids["run"], {"count": fitting}, dry=False)
    assert (last["decision"], last["steps_remaining"], last["binding_account"]) == ("admitted", 0, ids[level])


MIXTURES: dict[str, list[dict[str, Any]]] = {
    "cheap then dear": [{"event": _gaussian(80.0), "count": 50}, {"event": _gaussian(4.0), "count": 50}],
    "dear then cheap": [{"event": _gaussian(12.0), "count": 2}, {"event": _gaussian(200.0), "count": 10**6}],
    "sampled and not": [{"event": SAMPLED, "count": 9}, {"event": _gaussian(30.0), "count": 1}] * 60,
    "one at a time": [{"event": _sampled(0.8 + i / 100)} for i in range(100)] * 9,
    "nothing fits": [{"event": _gaussian(0.1)}, {"event": _gaussian(1e5)}],
    "the last one breaks it": [{"event": _gaussian(500.0), "count": 3}, {"event": _gaussian(0.2)}],
}


def _first(events: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first `count` steps of a list."""
    taken = []
    for item in events:
        here = min(count, item.get("count", 1))
        if here:
            taken.append({"event": item["event"], "count": here})
        count -= here
    return taken


@pytest.mark.parametrize(("mixture", "planned"), thinned(list(product(MIXTURES, PLANNED)), 3))
def test_the_count_that_fits_is_exact_for_a_list(ledger: Ledger, mixture: str, planned: str) -> None:
    ids = _tree(ledger, "division", PLANNED[planned])
    events = MIXTURES[mixture]
    for _ in range(2):
        response = _ask(ledger, ids["run"], {"events": events})
        fitting = response["max_count_that_fits"]
        assert response["decision"] == "refused"
        assert fitting < response["count"] == sum(item.get("count", 1) for item in events)
        if len(events) > 1:
            reason = {"type": "more_noise", "reason": "several_events"}
            assert reason in response["unavailable_alternatives"]
        if fitting:
            assert _ask(ledger, ids["run"], {"events": _first(events, fitting)})["decision"] == "admitted"
        more = _ask(ledger, ids["run"], {"events": _first(events, fitting + 1)})
        assert (more["decision"], more["max_count_that_fits"]) == ("refused", fitting)
        _ask(ledger, ids["run"], {"event": _gaussian(40.0), "count": 2}, dry=False)


def _quieter(noise: float) -> float:
    """The next smaller number with four significant digits."""
    digits, exponent = f"{noise:.3e}".split("e")
    thousandths = round(float(digits) * 1000) - 1
    if thousandths < 1000:
        return float(f"9.999e{int(exponent) - 1}")
    return float(f"{thousandths / 1000:.3f}e{exponent}")


REQUESTS: dict[str, dict[str, Any]] = {
    "gaussian": {"event": _gaussian(0.5)},
    "gaussians": {"event": _gaussian(3.0), "count": 1000},
    "sampled": {"event": _sampled(0.3, 0.5)},
    "many sampled": {"event": SAMPLED, "count": 200_000},
    "little sampling": {"event": _sampled(0.05, 1e-4), "count": 10},
    "a list of one": {"events": [{"event": _sampled(0.6), "count": 300}]},
    "the default event": {"count": 50_000},
    "hardly any noise": {"event": _gaussian(1e-3), "count": 10**6},
}


def _asked() -> list[tuple[str, int, str]]:
    """Each request, of a run that was charged or not, where either account binds.

    Of each four `make test` takes the first: all requests, each in one of these ways.
    """
    charges, ends = [0, 5], ["run", "population"]
    return [
        (name, charged, level)
        for number, name in enumerate(REQUESTS)
        for charged in charges[:: 1 if number % 2 == 0 else -1]
        for level in ends[:: 1 if number % 4 < 2 else -1]
    ]


@pytest.mark.parametrize(("request_name", "charged", "level"), thinned(_asked(), 4))
def test_the_noise_that_fits_is_admitted_and_less_of_it_is_not(
    ledger: Ledger, request_name: str, charged: int, level: str
) -> None:
    ids = _tree(ledger, level)
    if charged:
        assert _ask(ledger, ids["run"], {"count": charged}, dry=False)["decision"] == "admitted"
    body = REQUESTS[request_name]
    response = _ask(ledger, ids["run"], body)
    enough = more_noise(response)
    louder = _ask(ledger, ids["run"], {"event": _noisy(body, 10 * _noise(body)), "count": response["count"]})
    fitting = louder.get("max_count_that_fits", response["count"])
    few = max(fitting, response["max_count_that_fits"]) < response["steps_needed"] / 100
    assert response["exhausted"] is ("practically used up" in response["detail"]) is (enough is None) is few
    if enough is None:
        return
    assert f"{enough:g}" in response["detail"]
    assert float(f"{enough:.3e}") == enough

    def answer(noise: float) -> str:
        event = _noisy(body, noise)
        return str(_ask(ledger, ids["run"], {"event": event, "count": response["count"]})["decision"])

    def reserved(noise: float) -> str:
        plan = {"plan": [{"event": _noisy(body, noise), "count": response["count"]}]}
        reply = ledger.post(f"/v1/runs/{ids['run']}/reservations", plan, "trainer")
        if reply.status_code == 403:
            return "refused"
        assert ledger.post(f"/v1/reservations/{reply.json()['id']}/void", {}, "trainer").status_code == 200
        return "admitted"

    assert answer(enough) == "admitted"
    assert reserved(enough) == "admitted"
    assert "refused" in {answer(_quieter(enough)), reserved(_quieter(enough))}  # it suits both kinds of programs
    assert answer(enough * 1.5) == "admitted"


def _noise(body: dict[str, Any]) -> float:
    item = body["events"][0] if "events" in body else body
    event: dict[str, Any] = item.get("event", SAMPLED)
    return float(event["noise_multiplier"] if event["type"] == "gaussian" else event["event"]["noise_multiplier"])


def _noisy(body: dict[str, Any], noise: float) -> dict[str, Any]:
    item = body["events"][0] if "events" in body else body
    event: dict[str, Any] = item.get("event", SAMPLED)
    if event["type"] == "gaussian":
        return _gaussian(noise)
    return event | {"event": _gaussian(noise)}


def test_no_noise_is_named_where_none_is_enough(seeded: SeededLedger) -> None:
    event = _gaussian(100.0)
    left = _ask(seeded.ledger, seeded.run, {"event": event, "count": 10**9})["max_count_that_fits"]
    assert _ask(seeded.ledger, seeded.run, {"event": event, "count": left}, dry=False)["steps_remaining"] == 0
    event = _gaussian(1e4)
    left = _ask(seeded.ledger, seeded.run, {"event": event, "count": 10**9})["max_count_that_fits"]
    if left:
        assert _ask(seeded.ledger, seeded.run, {"event": event, "count": left}, dry=False)["steps_remaining"] == 0
    response = _ask(seeded.ledger, seeded.run, {"event": _gaussian(2.0), "count": 10**9})
    assert (response["max_count_that_fits"], more_noise(response)) == (0, None)
    assert "noise multiplier" not in response["detail"]


def test_the_account_that_leaves_the_fewest_steps_is_named(ledger: Ledger) -> None:
    ids = _tree(ledger, "budget")
    other = ledger.run("people/division/team")
    everything = ledger.get(f"/v1/runs/{other}").json()["steps_remaining"]
    assert _ask(ledger, other, {"count": everything}, dry=False)["steps_remaining"] == 0
    response = _ask(ledger, ids["run"], {}, dry=False)
    assert (response["binding_account"], response["binding_account_path"]) == (ids["budget"], "people/division/team")
    assert response["epsilon"] > 0
    assert ledger.get(f"/v1/runs/{ids['run']}").json()["epsilon"] == 0


@pytest.mark.parametrize(
    ("spent", "limit", "requested", "told"),
    [
        (1.5, 2.0, 2.5, "1.5000 of 2 (delta 1e-05); with this request it would be 2.5000."),
        (1.99997, 2.0, 2.00002, "1.99997 of 2 (delta 1e-05); with this request it would be 2.00002."),
        (2.0, 2.0, 2.0000004, "2.0000000 of 2 (delta 1e-05); with this request it would be 2.0000004."),
        (1.99996, 1.99998, 2.5, "1.99996 of 1.99998 (delta 1e-05); with this request it would be 2.50000."),
        (0.5, 0.500001, 0.6, "0.5000 of 0.500001 (delta 1e-05); with this request it would be 0.6000."),
        (2 - 1e-13, 2.0, "Infinity", "1.9999999999999 of 2 (delta 1e-05); with this request it would be infinite."),
        (1.5, 2.0, 1.5, "1.5000 of 2 (delta 1e-05); with this request it would be 1.5000."),
    ],
)
def test_no_rounding_hides_the_reason_of_a_refusal(
    spent: float, limit: float, requested: float | str, told: str
) -> None:
    facts = REFUSED_EXAMPLE | {"epsilon": spent, "epsilon_limit": limit, "epsilon_requested": requested}
    assert refusal_text(facts, "mimic", 1).startswith(f"mimic has spent epsilon {told} ")
