"""Refusals and truncations: every number in them is one that the next request can rely on."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import nextafter
from typing import Any

import pytest

from app.api.schemas.refusals import REFUSED_EXAMPLE, refusal_text
from app.ledger.accounts.account import MOST_USED
from tests.api.conftest import LIMIT, SeededLedger
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer, counted, gaussian, hired, is_refused
from tests.conftest import SAMPLED, Ledger
from tests.epsilons import tightest
from tests.persistence.dump import changed

LEVELS = ["run", "budget", "division", "population"]
LARGE = {"epsilon": 8.0, "delta": 1e-5}
SMALL = {"epsilon": 1.2, "delta": 1e-5}
PROBLEM = {"type", "title", "status", "detail", "code", "request_id"}
REFUSED = {
    *("decision", "run", "first_step", "count", "binding_account", "binding_account_path", "epsilon"),
    *("used", "used_including_reserved", "used_requested", "limit", "delta"),
    *("delta_requested", "delta_left"),
    *("max_steps_that_fit", "limit_change", "dry_run", "url"),
    *("steps_needed", "exhausted", "alternatives", "unavailable_alternatives"),
    *("attempt", "plan"),
}


def _sampled(noise: float) -> dict[str, Any]:
    return {"type": "poisson_sampled", "sampling_probability": 0.02, "event": gaussian(noise)}


def _tree(ledger: Ledger, level: str, planned: Sequence[dict[str, Any]] = ()) -> dict[str, str]:
    """A population, a division, a budget and a run, one of which has the small limit; their ids."""
    limits = {name: {"limit": SMALL if name == level else LARGE, "planned": list(planned)} for name in LEVELS}
    ids = {"population": str(ledger.population("people", **limits["population"])["id"])}
    ids["division"] = str(ledger.budget("division", "people", **limits["division"])["id"])
    ids["budget"] = str(ledger.budget("team", "people/division", **limits["budget"])["id"])
    event = planned[0]["event"] if planned else SAMPLED
    return ids | {"run": ledger.run("people/division/team", event=event, **limits["run"])}


def more_noise(response: dict[str, Any]) -> float | None:
    """The noise multiplier that a refusal offers for all steps, if any."""
    offered = [each["noise_multiplier"] for each in response["alternatives"] if each["type"] == "more_noise"]
    return offered[0] if offered else None


def _ask(ledger: Ledger, run: str, body: dict[str, Any], *, dry: bool = True) -> dict[str, Any]:
    reply = ledger.post(f"/v1/runs/{run}/steps?dry_run={'true' if dry else 'false'}", body, "trainer")
    assert reply.status_code in {200, 403}, reply.text
    return dict(reply.json())


def test_refusal_has_every_number_and_they_fit_together(seeded: SeededLedger) -> None:
    before, read = seeded.rows(), seeded.ledger.get(f"/v1/runs/{seeded.run}").content
    reply = seeded.steps(count=10_000, first_step=1)
    response = is_refused(reply, 403, "budget_exceeded")
    assert reply.headers["content-type"] == "application/problem+json"
    assert set(response) == PROBLEM | REFUSED
    named = {"type": "urn:problem-type:epsilon-ledger:budget_exceeded", "decision": "refused", "run": seeded.run}
    named |= {"binding_account": seeded.budget, "binding_account_path": "mimic/icu-team"}
    numbers = {"first_step": 1, "count": 10_000, "limit": LIMIT, "delta": 1e-5, "steps_needed": 10_000}
    told = named | numbers | {"dry_run": False, "url": f"http://testserver/runs/{seeded.run}"}
    assert {name: response[name] for name in told} == told
    exact, fitting = tightest((SAMPLED, 1)), response["max_steps_that_fit"]
    assert exact * (1 - 3e-4) <= response["epsilon"] <= exact * 1.005
    assert 0 < response["used"] == response["used_including_reserved"] <= 1 / (fitting + 1)
    assert response["used_requested"] == pytest.approx(10_001 * response["used"], rel=1e-6)
    assert 0 < fitting < 10_000
    assert more_noise(response) is not None
    assert "mimic/icu-team" in response["detail"]
    assert changed(before, seeded.rows()) == {"accounts", "decisions", "runs"}  # of the run, another version
    assert seeded.ledger.get(f"/v1/runs/{seeded.run}").content == read
    infinite = _ask(seeded.ledger, seeded.run, {"event": gaussian(1e-3), "count": 10**9})
    assert (infinite["used_requested"], infinite["max_steps_that_fit"]) == (MOST_USED, 0)
    assert "no finite epsilon" in infinite["detail"]


@pytest.mark.parametrize(("level", "planned"), [("budget", [{"event": LOUD}]), ("population", [])])
def test_count_that_fits_is_exact_whichever_account_binds(
    ledger: Ledger, level: str, planned: list[dict[str, Any]]
) -> None:
    """By a plan of every account, or of the run alone, which its default event is."""
    ids = _tree(ledger, level, planned)
    for charged in (0, 7):
        if charged:
            assert _ask(ledger, ids["run"], {"count": charged}, dry=False)["decision"] == "admitted"
        response = _ask(ledger, ids["run"], {"count": 10**9})
        fitting = response["max_steps_that_fit"]
        assert response["binding_account"] == ids[level]
        assert response["limit"] == SMALL
        assert response["used"] <= charged / (charged + fitting)
        assert fitting == ledger.get(f"/v1/runs/{ids['run']}").json()["steps_remaining"] > 0
        more = _ask(ledger, ids["run"], {"count": fitting + 1})
        assert (more["decision"], more["max_steps_that_fit"]) == ("refused", fitting)
    last = _ask(ledger, ids["run"], {"count": fitting}, dry=False)
    assert (last["decision"], last["steps_remaining"], last["binding_account"]) == ("admitted", 0, ids[level])


def test_count_that_fits_is_exact_for_a_list(ledger: Ledger) -> None:
    run = _tree(ledger, "division")["run"]
    cheap, dear = {"event": gaussian(80.0), "count": 50}, {"event": gaussian(6.0), "count": 50}
    response = _ask(ledger, run, {"events": [cheap, dear]})
    fitting = response["max_steps_that_fit"]
    assert 50 < fitting < response["count"] == 100
    assert {"type": "more_noise", "reason": "several_events"} in response["unavailable_alternatives"]
    for count, decision in ((fitting, "admitted"), (fitting + 1, "refused")):
        answer = _ask(ledger, run, {"events": [cheap, dear | {"count": count - 50}]})
        assert answer["decision"] == decision


def test_noise_that_fits_is_admitted_and_less_of_it_is_not(ledger: Ledger) -> None:
    run = _tree(ledger, "run")["run"]
    assert _ask(ledger, run, {"count": 5}, dry=False)["decision"] == "admitted"
    response = _ask(ledger, run, {"events": [{"event": _sampled(0.6), "count": 300}]})
    enough = more_noise(response)
    assert enough is not None
    assert f"{enough:g}" in response["detail"]
    assert float(f"{enough:.3e}") == enough  # four digits
    assert not response["exhausted"]

    def answer(noise: float) -> str:
        return str(_ask(ledger, run, {"event": _sampled(noise), "count": 300})["decision"])

    def reserved(noise: float) -> bool:
        plan = {"events": [{"event": _sampled(noise), "count": 300}]}
        reply = ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer")
        return reply.is_success and ledger.post(f"/v1/reservations/{reply.json()['id']}/void", {}, "trainer").is_success

    assert (answer(enough), answer(1.5 * enough), reserved(enough)) == ("admitted", "admitted", True)
    less = enough * 0.999
    assert answer(less) == "refused" or not reserved(less)  # it suits both kinds of programs


def test_no_noise_is_offered_where_none_is_enough(seeded: SeededLedger) -> None:
    for noise in (100.0, 1e4):
        event = gaussian(noise)
        left = _ask(seeded.ledger, seeded.run, {"event": event, "count": 10**9})["max_steps_that_fit"]
        if left:
            assert _ask(seeded.ledger, seeded.run, {"event": event, "count": left}, dry=False)["steps_remaining"] == 0
    response = _ask(seeded.ledger, seeded.run, {"event": gaussian(2.0), "count": 10**9})
    assert (response["max_steps_that_fit"], more_noise(response)) == (0, None)
    assert "With a noise multiplier" not in response["detail"]


WHOLE = "of its limit, epsilon 2 at delta 1e-5, and this step"
ROUNDED: list[tuple[float, float, str]] = [
    (0.75, 1.25, f"75 % {WHOLE} would bring it to 125 %."),
    (0.99999, 1.00001, f"99.999 % {WHOLE} would bring it to 100.001 %."),
    (1.0, 1.000000004, f"100 % {WHOLE} would bring it to 100.0000004 %."),
    (0.9999999, 1.25, f"99.99999 % {WHOLE} would bring it to 125 %."),
    (1.0, nextafter(1.0, 2.0), f"100 % {WHOLE} would bring it to 100.00000000000003 %."),
    (1 - 1e-11, MOST_USED, f"99.999999999 % {WHOLE} has no finite epsilon."),
]


@pytest.mark.parametrize(("used", "requested", "told"), ROUNDED)
def test_no_rounding_hides_the_reason_of_a_refusal(used: float, requested: float, told: str) -> None:
    numbers = {"used": used, "used_including_reserved": used, "used_requested": requested}
    facts = REFUSED_EXAMPLE | numbers | {"limit": {"epsilon": 2.0, "delta": 1e-5}}
    assert refusal_text(facts, "mimic", 1).startswith(f"mimic has used {told} ")


def _limits(*epsilons: float) -> dict[str, Any]:
    paths = zip("abc", epsilons, strict=False)
    return {"type": "higher_limit", "limits": [{"account_path": path, "epsilon": value} for path, value in paths]}


def _plan(steps: int, used: int, left: int, *differences: dict[str, Any]) -> dict[str, Any]:
    return {"steps": steps, "steps_used": used, "steps_remaining": left, "differences": differences}


NOISE = {"type": "more_noise", "noise_multiplier": 1.423}
NO_NOISE, NO_LIMIT = ({"type": kind, "reason": "none_suffices"} for kind in ("more_noise", "higher_limit"))
CHANGE: dict[str, Any] = {"changed_at": "2026-11-28T10:00:00+00:00", "actor": "key_abc"}
LESS_NOISE = {"parameter": "noise_multiplier", "planned": 1.7, "sent": 1.69}
OTHER_KIND = {"parameter": "type", "planned": "gaussian", "sent": "laplace"}
HELD = {"used": 0.0668, "used_including_reserved": 0.94, "used_requested": 1.003}
WORDED: list[tuple[int, dict[str, Any], str]] = [
    (1, {"plan": _plan(1028, 1028, 0)}, "and its plan of 1,028 steps is used up."),
    (1, {"plan": _plan(1, 1, 0)}, "and its plan of 1 step is used up."),
    (1, {"plan": _plan(24, 0, 0)}, "and its plan of 24 steps is used up or reserved."),
    (1, {"plan": _plan(100, 99, 1)}, "and 1 of its 100 planned steps is left."),
    (1, {"plan": _plan(5000, 10, 2)}, "and 2 of its 5,000 planned steps are left."),
    (
        1,
        {"plan": _plan(28, 16, 12, LESS_NOISE, OTHER_KIND)},
        "The plan does not cover this event: its noise_multiplier is 1.69, planned 1.7 and its type is laplace",
    ),
    (2, {"max_steps_that_fit": 1}, "Only the first of the 2 requested steps would fit."),
    (1000, {"max_steps_that_fit": 2}, "Only the first 2 of the 1,000 requested steps would fit."),
    (2, {}, "None of the 2 requested steps fits."),
    (1, {"exhausted": True, "steps_needed": 1}, "not even this step would fit at ten times the noise."),
    (1, {"exhausted": True, "steps_needed": 1000}, "fewer than 1% of the 1,000 remaining steps would fit."),
    (
        1,
        {"alternatives": [NOISE], "steps_needed": 2},
        "With a noise multiplier of 1.423, both remaining steps would fit.",
    ),
    (
        1,
        {"alternatives": [_limits(3.42)], "steps_needed": 1},
        "Raise the limit of a to epsilon 3.42; this step then fits un",
    ),
    (
        1,
        {"alternatives": [NOISE, _limits(3.42, 8.1, 2.5)]},
        "Or raise the limits to epsilon 3.42 for a, 8.1 for b and 2.5 for c; ",
    ),
    (1, {"alternatives": [{"type": "same_noise", "steps": 1}]}, "1 more step would fit unchanged."),
    (1, {"alternatives": [{"type": "same_noise", "steps": 1000}]}, "1,000 more steps would fit unchanged."),
    (1, {"unavailable_alternatives": [NO_NOISE]}, "No noise multiplier in the allowed range is enough."),
    (1, {"unavailable_alternatives": [NO_NOISE, NO_LIMIT]}, "Neither more noise nor a higher limit is enough."),
    (
        1,
        {"delta_requested": 2e-7},
        "need 2e-7 of delta for their own failure probability, but the account has set aside only 1e-7.",
    ),
    (
        1,
        {"limit_change": CHANGE | {"before": {"epsilon": 4.0, "delta": 1e-5}}},
        "Its limit was lowered from epsilon 4 to 3 on 28 November 2026, 10:00 UTC by key_abc.",
    ),
    (
        1,
        {"limit_change": CHANGE | {"before": {"epsilon": 3.0, "delta": 1e-6}}},
        "Its limit was changed from epsilon 3 at delta 1e-6 to epsilon 3 at delta 1e-5 on 28 November 2026",
    ),
    (1, HELD, "6.68 % of its limit, epsilon 3 at delta 1e-5, or 94 % with all that is reserved, and this step would"),
    (1, HELD, "or 94 % with all that is reserved, and this step would bring it to 100.3 %."),
]


@pytest.mark.parametrize(("count", "members", "told"), WORDED)
def test_refusal_is_a_sentence_for_one_two_and_many(count: int, members: dict[str, Any], told: str) -> None:
    bare: dict[str, Any] = {"alternatives": [], "unavailable_alternatives": []}
    said = refusal_text(REFUSED_EXAMPLE | bare | members, "mimic", count)
    assert told in said
    assert not re.search(r"\b1 \w+s\b|\b0 of|\binf\b|e-0\d|  |\.\.", said), said


LISTS: list[list[tuple[dict[str, Any], int]]] = [
    [(LOUD, 10**9)],
    [(LOUD, 10**6), (QUIET, 4)],
    [(QUIET, 11), (LOUD, 10**6), (QUIET, 1)],
    [(QUIET, 11), (LOUD, 9), (HUGE, 1)],
    [(LOUD, 3), (HUGE, 1), (SAMPLED, 1)],
    [(LOUD, 60), (QUIET, 20), (LOUD, 60), (QUIET, 20)] * 4,
]
"""One event, the first, or the second is cut; the last one or the middle one is left out; one comes again."""


FURNISHED = {"trainer": hired}


def _prefix(items: list[tuple[dict[str, Any], int]], count: int) -> list[tuple[dict[str, Any], int]]:
    """The first so many steps of a list."""
    taken = []
    for event, times in items:
        if count > 0:
            taken.append((event, min(times, count)))
        count -= times
    return taken


@pytest.mark.parametrize(("place", "event"), list(zip(range(6), [None, LOUD] * 3, strict=True)))
def test_longest_prefix_is_admitted(trainer: Trainer, place: int, event: dict[str, Any] | None) -> None:
    """By the orders alone, or by the plan that the run's default event is as well."""
    own, items = trainer.ledger.run(limit={"epsilon": 0.7, "delta": 1e-5}, event=event), LISTS[place]
    trainer = replace(trainer, run=own)
    asked = sum(count for _, count in items)
    preview = trainer.steps(events=counted(*items), on_exceed="truncate", dry_run=True).json()
    answer = trainer.steps(events=counted(*items), on_exceed="truncate").json()
    assert answer == preview | {"dry_run": False}
    fits = answer["count"]
    assert (answer["decision"], answer["requested_count"], answer["next_step"]) == ("admitted", asked, fits)
    assert 0 < fits < asked
    kept = _prefix(items, fits)
    assert [spent for spent, _ in trainer.balance()] == trainer.costs(*kept)
    assert trainer.history()[-1]["events"] == counted(*kept)
    assert trainer.sound()
    further, _ = _prefix(items, fits + 1)[-1]
    is_refused(trainer.steps(event=further), 403, "budget_exceeded")


def test_truncation_takes_the_last_step_and_no_further(trainer: Trainer) -> None:
    left = trainer.steps().json()["steps_remaining"]
    answer = trainer.steps(count=left + 1, on_exceed="truncate").json()
    assert (answer["count"], answer["steps_remaining"]) == (left, 0)
    answer = is_refused(trainer.steps(on_exceed="truncate"), 403, "budget_exceeded")
    assert (answer["count"], answer["max_steps_that_fit"]) == (1, 0)
    assert (more_noise(answer) or 61) > 60
    assert trainer.sound()


def test_truncation_beside_a_plan_is_decided_by_the_accounts(trainer: Trainer) -> None:
    """A plan covers all of a request or nothing of it: it does not admit a prefix."""
    trainer.reserved((LOUD, 5))
    free = trainer.read()["steps_remaining"]
    answer = trainer.steps(count=10**6, on_exceed="truncate").json()
    assert (answer["reservation"], answer["count"]) == (None, free)
    assert trainer.path()[-1].held == trainer.price((LOUD, 5))
    assert trainer.steps(count=5).json()["reservation"] is not None
    assert trainer.sound()
