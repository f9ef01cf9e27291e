"""Refusals of steps, plans and sweeps: their numbers, their alternatives, and both in words."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from app.api.links import run_url
from app.api.schemas.common import EXAMPLE_BUDGET_ID, EXAMPLE_REQUEST_ID, EXAMPLE_RUN_ID
from app.ledger.alternatives import AlternativeType, UnavailableReason
from app.ledger.decisions import Decision

REFUSED_EXAMPLE: dict[str, Any] = {
    "type": "urn:problem-type:epsilon-ledger:budget_exceeded",
    "title": "Budget exceeded",
    "status": 403,
    "detail": "mimic/icu-team has spent epsilon 2.9996 of 3 (delta 1e-05); with this request it would be 3.0001. "
    "None of the requested steps fits. With a noise multiplier of 1.423, all 882 steps that the training still needs "
    "would fit. With the limit epsilon 3.42 for mimic/icu-team, they would fit as they are.",
    "code": "budget_exceeded",
    "request_id": EXAMPLE_REQUEST_ID,
    "decision": "refused",
    "run": EXAMPLE_RUN_ID,
    "attempt": 1,
    "first_step": 3118,
    "count": 1,
    "binding_account": EXAMPLE_BUDGET_ID,
    "binding_account_path": "mimic/icu-team",
    "epsilon": 2.9996,
    "epsilon_requested": 3.0001,
    "epsilon_limit": 3.0,
    "delta": 1e-5,
    "rdp": {"order": 7.0376, "spent": 1.5624, "held": 0.0, "requested": 0.0005, "limit": 1.5628},
    "delta_requested": 0.0,
    "delta_left": 1e-7,
    "plan": None,
    "max_count_that_fits": 0,
    "steps_needed": 882,
    "exhausted": False,
    "alternatives": [
        {"type": "more_noise", "steps": 882, "noise_multiplier": 1.423},
        {
            "type": "higher_limit",
            "steps": 882,
            "limits": [
                {"account": EXAMPLE_BUDGET_ID, "account_path": "mimic/icu-team", "epsilon": 3.42, "delta": 1e-5}
            ],
        },
    ],
    "unavailable_alternatives": [],
    "limit_change": None,
    "url": f"https://ledger.example.org/runs/{EXAMPLE_RUN_ID}",
    "dry_run": False,
}


def refusal_members(decision: Decision, *, dry_run: bool) -> tuple[str, dict[str, Any]]:
    """Build the detail and the members of a refusal."""
    facts = refusal_facts(decision)
    members = {
        "decision": "refused",
        "run": decision.run_id,
        "attempt": decision.attempt,
        "first_step": decision.first_step,
        "count": decision.step_count,
        "binding_account": decision.binding_account_id,
        "binding_account_path": decision.binding_account_path,
        **facts,
        "url": run_url(decision.run_id),
        "dry_run": dry_run,
    }
    return refusal_text(facts, decision.binding_account_path, decision.step_count), members


def refusal_facts(decision: Decision) -> dict[str, Any]:
    """Build the numbers of a refusal."""
    assert decision.refusal_details is not None, "a refusal has its numbers"
    facts: dict[str, Any] = json.loads(decision.refusal_details)
    return facts


_EPSILONS: Final = ("epsilon", "epsilon_limit", "epsilon_requested")


def _epsilon_texts(spent: float, limit: float, requested: float) -> tuple[str, str, str]:
    """Format the epsilons of a refusal with enough decimals that rounding changes no comparison."""
    texts = (repr(spent), repr(requested))
    for decimals in range(4, 11):
        if _comparisons(round(spent, decimals), limit, round(requested, decimals)) == _comparisons(
            spent, limit, requested
        ):
            texts = (f"{spent:.{decimals}f}", f"{requested:.{decimals}f}")
            break
    is_now, became = ("infinite" if text == "inf" else text for text in texts)
    return is_now, repr(limit).removesuffix(".0"), became


def _comparisons(*numbers: float) -> list[bool]:
    return [one < other for one in numbers for other in numbers]


def refusal_text(facts: Mapping[str, Any], binding_path: str, count: int) -> str:
    """Describe a refusal of steps or of a plan."""
    is_now, limit, became = _epsilon_texts(*(float(facts[name]) for name in _EPSILONS))
    fitting = facts["max_count_that_fits"]
    spent = f"{binding_path} has spent epsilon {is_now} of {limit} (delta {facts['delta']:g})"
    plan = facts["plan"]
    if plan is None:
        spent += f"; with this request it would be {became}."
    else:
        spent += f", and {plan['steps_left']:,} of the {plan['steps']:,} steps of its plan are left."
    if facts["rdp"]["held"]:
        spent += " Reservations hold a part of the rest."
    if facts["delta_requested"] > facts["delta_left"]:
        spent += (
            f" Its mechanisms take {facts['delta_requested']:.3g} of delta for themselves, and "
            f"{facts['delta_left']:.3g} is left for that: an account sets aside what its `planned` events take."
        )
    fits = f"The first {fitting:,} of the {count:,} requested steps would fit."
    sentences = [spent, fits if fitting else "None of the requested steps fits."]
    change = facts["limit_change"]
    if change is not None:
        at = datetime.fromisoformat(change["changed_at"])
        sentences.append(
            f"Its limit was changed from epsilon {change['epsilon_before']:g} (delta {change['delta_before']:g}) at "
            f"{at:%Y-%m-%d %H:%M:%S} UTC by {change['actor']}."
        )
    return " ".join([*sentences, *alternative_sentences(facts, stated=fitting)])


def alternative_sentences(facts: Mapping[str, Any], *, stated: int) -> list[str]:
    """Describe the alternatives to a refused request; `stated` is the number of fitting steps that is known already."""
    needed = facts["steps_needed"]
    steps = "the step" if needed == 1 else f"all {needed:,} steps that the training still needs"
    sentences = []
    if facts["exhausted"]:
        sentences.append(
            f"The budget is practically used up: fewer than 1 % of the {needed:,} steps that the training still needs "
            "would fit even at ten times the noise."
        )
    for each in facts["alternatives"]:
        match each["type"]:
            case AlternativeType.SAME_NOISE if each["steps"] != stated:
                plural = "s" if each["steps"] > 1 else ""
                sentences.append(f"{each['steps']:,} more step{plural} would fit as they are.")
            case AlternativeType.MORE_NOISE:
                sentences.append(f"With a noise multiplier of {each['noise_multiplier']:g}, {steps} would fit.")
            case AlternativeType.HIGHER_LIMIT:
                raised = [f"epsilon {limit['epsilon']:g} for {limit['account_path']}" for limit in each["limits"]]
                plural = "s" if len(raised) > 1 else ""
                sentences.append(f"With the limit{plural} {' and '.join(raised)}, {steps} would fit as they are.")
    missing = {each["type"]: each["reason"] for each in facts["unavailable_alternatives"]}
    sentences += [
        f"{_NOT_OFFERED[kind]}: {_REASONS[reason]}." for kind, reason in missing.items() if reason in _REASONS
    ]
    return sentences


_NOT_OFFERED: Final[Mapping[str, str]] = {
    AlternativeType.MORE_NOISE: "More noise is not offered",
    AlternativeType.HIGHER_LIMIT: "A higher limit is not offered",
}
_REASONS: Final[Mapping[str, str]] = {
    UnavailableReason.NONE_SUFFICES: "none is enough",
    UnavailableReason.SEVERAL_EVENTS: "the request has several events",
    UnavailableReason.NO_NOISE_MULTIPLIER: "the event has no single noise multiplier to change",
    UnavailableReason.POLICY: "a policy forbids it",
    UnavailableReason.TOO_EXPENSIVE: "the search would take more work than a request may take",
    UnavailableReason.NOT_SEARCHED: "other charges came in between, or too many searches are waiting",
}
"""Why an alternative is not offered; that the budget is practically used up has a sentence of its own."""
