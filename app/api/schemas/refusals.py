"""Refusals of steps, reservations and sweeps: their numbers, their alternatives, and both in words."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from app.api.links import run_url
from app.api.schemas.common import EXAMPLE_BUDGET_ID, EXAMPLE_REQUEST_ID, EXAMPLE_RUN_ID
from app.ledger.accounts.account import MOST_USED
from app.ledger.admission.alternatives import AlternativeType, UnavailableReason
from app.ledger.filter.limits import Limit, Unit
from app.ledger.runs.decisions import Decision
from app.ledger.wording import counted, format_exact, joined
from app.service.json_values import json_finite

REFUSED_EXAMPLE: dict[str, Any] = {
    "type": "urn:problem-type:epsilon-ledger:budget_exceeded",
    "title": "Budget exceeded",
    "status": 403,
    "detail": f"Step 3,118 of {EXAMPLE_RUN_ID} was refused: mimic/icu-team has used 99.98 % of its limit, epsilon 3 at "
    "delta 1e-5, and this step would bring it to 100.01 %. With a noise multiplier of 1.423, all 882 remaining steps "
    "would fit. Or raise the limit of mimic/icu-team to epsilon 3.42; all 882 remaining steps then fit unchanged.",
    "code": "budget_exceeded",
    "request_id": EXAMPLE_REQUEST_ID,
    "decision": "refused",
    "run": EXAMPLE_RUN_ID,
    "attempt": 1,
    "first_step": 3118,
    "count": 1,
    "binding_account": EXAMPLE_BUDGET_ID,
    "binding_account_path": "mimic/icu-team",
    "epsilon": 2.9712,
    "delta": 1e-5,
    "used": 0.99978,
    "used_including_reserved": 0.99978,
    "used_requested": 1.00012,
    "limit": {"epsilon": 3.0, "delta": 1e-5},
    "delta_requested": 0.0,
    "delta_left": 1e-7,
    "plan": None,
    "max_steps_that_fit": 0,
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
        **json_finite(epsilon=decision.reading.epsilon),
        "delta": decision.reading.delta,
        **facts,
        "url": run_url(decision.run_id),
        "dry_run": dry_run,
    }
    return decision_text(decision), members


def refusal_facts(decision: Decision) -> dict[str, Any]:
    """Build the numbers of a refusal."""
    assert decision.refusal_details is not None, "a refusal has its numbers"
    facts: dict[str, Any] = json.loads(decision.refusal_details)
    return facts


def decision_text(decision: Decision) -> str:
    """Describe the refusal of a decision."""
    first, count = decision.first_step, decision.step_count
    steps = f"Step {first:,}" if count == 1 else f"Steps {first:,} to {first + count - 1:,}"
    was = "was" if count == 1 else "were"
    return f"{steps} of {decision.run_id} {was} refused: " + refusal_text(
        refusal_facts(decision), decision.binding_account_path, count
    )


def reservation_text(facts: Mapping[str, Any], binding_path: str, count: int) -> str:
    """Describe the refusal of a reservation."""
    return f"A reservation of {counted(count, 'step')} was refused: {refusal_text(facts, binding_path, count)}"


def refusal_text(facts: Mapping[str, Any], binding_path: str, count: int) -> str:
    """Describe why a request of so many steps was refused, and what would be admitted instead."""
    sentences = [f"{binding_path} has used {_used(facts, count)}."]
    if facts["plan"] is not None and facts["plan"]["differences"]:
        sentences.append(f"The plan does not cover this event: {differences_text(facts['plan']['differences'])}.")
    if facts["delta_requested"] > facts["delta_left"]:
        sentences.append(
            f"These events need {_rounded(facts['delta_requested'])} of delta for their own failure probability, but "
            f"the account has set aside only {_rounded(facts['delta_left'])}. Declare them in `planned` when you "
            "create the account."
        )
    fitting = facts["max_steps_that_fit"]
    if count > 1:
        first = "the first" if fitting == 1 else f"the first {fitting:,}"
        requested = f"of the {count:,} requested steps"
        sentences.append(f"Only {first} {requested} would fit." if fitting else f"None {requested} fits.")
    if facts["limit_change"] is not None:
        sentences.append(_changed(facts, facts["limit_change"]))
    return " ".join([*sentences, *alternative_sentences(facts, stated=fitting)])


def _used(facts: Mapping[str, Any], count: int) -> str:
    """Describe what is used, and what the request would make of it, or what is left of the plan."""
    now, reserved, became = share_texts(*(facts[name] for name in _SHARES))
    spent, plan = f"{now} of its limit, {limit_text(facts['limit'])}", facts["plan"]
    if facts["used_including_reserved"] > facts["used"]:
        spent += f", or {reserved} with all that is reserved"
    if plan is not None:
        left, steps = plan["steps_remaining"], counted(plan["steps"], "step")
        if not left:
            used_up = "used up" if plan["steps_used"] >= plan["steps"] else "used up or reserved"
            return f"{spent}, and its plan of {steps} is {used_up}"
        are = "is" if left == 1 else "are"
        return f"{spent}, and {left:,} of its {counted(plan['steps'], 'planned step')} {are} left"
    request = "this step" if count == 1 else "this request"
    if facts["used_requested"] >= MOST_USED:
        unit = next(unit for unit in Unit if unit in facts["limit"])
        return f"{spent}, and {request} has no finite {unit}"
    return f"{spent}, and {request} would bring it to {became}"


def differences_text(differences: Sequence[Mapping[str, Any]]) -> str:
    """Describe in which parameters an event differs from what was planned."""
    texts = [{name: _parameter(each[name]) for name in ("planned", "sent")} for each in differences]
    return joined(
        f"its {each['parameter']} is {text['sent']}, planned {text['planned']}"
        for each, text in zip(differences, texts, strict=True)
    )


def _parameter(value: object) -> str:
    if value is None:
        return "not given"
    return format_exact(float(value)) if isinstance(value, int | float) else str(value)


_MOST_TOLD: Final = 999
_SHARES: Final = ("used", "used_including_reserved", "used_requested")


def limit_text(limit: Mapping[str, Any]) -> str:
    """Write a limit."""
    return str(Limit.of(limit))


def _value_text(limit: Mapping[str, Any]) -> str:
    unit = next(unit for unit in Unit if unit in limit)
    return f"{unit} {format_exact(limit[unit])}"


def share_texts(*shares: float) -> list[str]:
    """Format shares in percent with enough decimals that rounding changes no comparison among them and with 1."""
    percents = [100 * each for each in shares]
    for decimals in range(2, 12):
        if _comparisons(*(round(each, decimals) for each in percents), 100) == _comparisons(*percents, 100):
            return [_percent_text(f"{each:.{decimals}f}", each) for each in percents]
    return [_percent_text(repr(each), each) for each in percents]


def _percent_text(text: str, percent: float) -> str:
    if percent > _MOST_TOLD:
        return "over 999 %"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def _comparisons(*numbers: float) -> list[bool]:
    return [one < other for one in numbers for other in numbers]


def _rounded(number: float) -> str:
    return format_exact(float(f"{number:.3g}"))


def _changed(facts: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """Describe the last change of the binding account's limit."""
    at = datetime.fromisoformat(change["changed_at"])
    before, after = change["before"], facts["limit"]
    unit = next(unit for unit in Unit if unit in after)
    if unit in before and before.get("delta") == after.get("delta"):
        direction = "lowered" if after[unit] < before[unit] else "raised"
        moved = f"{direction} from {_value_text(before)} to {format_exact(after[unit])}"
    else:
        moved = f"changed from {limit_text(before)} to {limit_text(after)}"
    return f"Its limit was {moved} on {at.day} {at:%B %Y, %H:%M} UTC by {change['actor']}."


def alternative_sentences(facts: Mapping[str, Any], *, stated: int) -> list[str]:
    """Describe the alternatives to a refused request; `stated` is the number of fitting steps that is known already."""
    needed = facts["steps_needed"]
    steps = {1: "this step", 2: "both remaining steps"}.get(needed, f"all {needed:,} remaining steps")
    sentences = []
    if facts["exhausted"]:
        sentences.append(
            "The budget is used up: not even this step would fit at ten times the noise."
            if needed == 1
            else f"The budget is practically used up: even at ten times the noise, fewer than 1% of the {needed:,} "
            "remaining steps would fit."
        )
    other = any(each["type"] == AlternativeType.MORE_NOISE for each in facts["alternatives"])
    for each in facts["alternatives"]:
        match each["type"]:
            case AlternativeType.SAME_NOISE if each["steps"] != stated:
                sentences.append(f"{counted(each['steps'], 'more step')} would fit unchanged.")
            case AlternativeType.MORE_NOISE:
                noise = format_exact(each["noise_multiplier"])
                sentences.append(f"With a noise multiplier of {noise}, {steps} would fit.")
            case AlternativeType.HIGHER_LIMIT:
                then = f"{steps} then fit{'s' * (needed == 1)} unchanged"
                sentences.append(f"{'Or raise' if other else 'Raise'} {_raised(each['limits'])}; {then}.")
    return sentences + _missing({each["type"]: each["reason"] for each in facts["unavailable_alternatives"]})


def _raised(limits: Sequence[Mapping[str, Any]]) -> str:
    if len(limits) == 1:
        return f"the limit of {limits[0]['account_path']} to {_value_text(limits[0])}"
    shared = next((f"{unit} " for unit in Unit if all(unit in limit for limit in limits)), "")
    texts = [f"{_value_text(limit).removeprefix(shared)} for {limit['account_path']}" for limit in limits]
    return f"the limits to {shared}{joined(texts)}"


def _missing(reasons: Mapping[str, str]) -> list[str]:
    """Describe why alternatives are not offered; that the budget is used up has a sentence of its own."""
    if len(reasons) > 1 and set(reasons.values()) == {UnavailableReason.NONE_SUFFICES}:
        return ["Neither more noise nor a higher limit is enough."]
    return [
        _NONE_SUFFICES[kind]
        if reason == UnavailableReason.NONE_SUFFICES
        else f"{_NOT_OFFERED[kind]}: {_REASONS[reason]}."
        for kind, reason in reasons.items()
        if reason != UnavailableReason.EXHAUSTED
    ]


_NOT_OFFERED: Final[Mapping[str, str]] = {
    AlternativeType.MORE_NOISE: "More noise is not offered",
    AlternativeType.HIGHER_LIMIT: "A higher limit is not offered",
}
_NONE_SUFFICES: Final[Mapping[str, str]] = {
    AlternativeType.MORE_NOISE: "No noise multiplier in the allowed range is enough.",
    AlternativeType.HIGHER_LIMIT: "No limit in the allowed range is enough.",
}
_REASONS: Final[Mapping[str, str]] = {
    UnavailableReason.SEVERAL_EVENTS: "the request has several events",
    UnavailableReason.NO_NOISE_MULTIPLIER: "the event has no single noise multiplier to change",
    UnavailableReason.POLICY: "a policy forbids it",
    UnavailableReason.TOO_EXPENSIVE: "the search would take more work than a request may take",
    UnavailableReason.NOT_SEARCHED: "other charges came in between, or too many searches are waiting",
}
