"""Warn about policy rules that are ineffective without another rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.ledger.policies import Deviations, Policy, stricter


@dataclass(frozen=True, slots=True)
class RuleWarning:
    """A policy rule that is weaker than it looks.

    `requires` is the missing rule; None: a stricter one applies above.
    """

    rule: str
    requires: str | None
    detail: str


_BY_PLAN: Final = (
    "without `require_limit` a run is measured by what it plans, and nothing holds it to that: it may go on as far as "
    "its budget allows"
)

_NEEDS: Final[tuple[tuple[str, str, Callable[[Policy], bool], str], ...]] = (
    ("max_epsilon", "require_limit", lambda policy: policy.require_limit, _BY_PLAN),
    ("approval_above_epsilon", "require_limit", lambda policy: policy.require_limit, _BY_PLAN),
    (
        "max_unapproved_epsilon_per_budget",
        "require_limit",
        lambda policy: policy.require_limit or policy.approvers_to_raise_limit != 1,
        "without `require_limit` a run counts with the limit of its budget, which one person raises",
    ),
    (
        "deviations",
        "require_plan",
        lambda policy: policy.require_plan or policy.deviations is not Deviations.REFUSE,
        "without `require_plan` a run may declare nothing, and then no step differs from its declaration",
    ),
    (
        "min_noise_multiplier",
        "mechanisms",
        lambda policy: policy.mechanisms is not None,
        "without `mechanisms` a run may use one that has no noise multiplier",
    ),
)
"""Rule, its required rule, whether the effective policy satisfies that, and the consequence otherwise."""


def warnings_about(own: Policy, holds: Policy, above: Policy) -> tuple[RuleWarning, ...]:
    """Find the rules of a policy that have no effect, or can be bypassed.

    `holds` combines it with all policies above it, `above` only those. A rule may have two warnings.
    """
    found = [
        RuleWarning(rule, needed, f"{rule} can be bypassed: {detail}.")
        for rule, needed, is_met, detail in _NEEDS
        if getattr(own, rule) is not None and not is_met(holds)
    ]
    loose = [rule for rule in Policy.__dataclass_fields__ if _without_effect(rule, own, above)]
    found += [
        RuleWarning(rule, None, f"{rule} has no effect here: what holds above is as strict, or stricter.")
        for rule in loose
    ]
    return tuple(found)


def _without_effect(rule: str, own: Policy, above: Policy) -> bool:
    value = getattr(own, rule)
    if value is None or value is False or getattr(above, rule) is None:
        return False
    return bool(getattr(stricter(own, above), rule) == getattr(above, rule))
