"""Policies, which only get stricter down the tree, and warnings about rules without effect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache, reduce
from typing import Any, Final, get_args, get_origin, get_type_hints

from app.ledger.errors import InvalidInputError
from app.ledger.settings.policy_rules import DEFAULT_RULES, OPENERS, PERSONS, RULES, DeviationHandling, Policy

ORGANISATION: Final = "organisation"
"""The path of the organisation's own policy."""

EMPTY_POLICY: Final = Policy()


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A policy and the account path, or "organisation", that it was set at."""

    path: str
    policy: Policy


def require_account_policy(policy: Policy) -> None:
    """Refuse rules that only the organisation's policy can set.

    Raises:
        InvalidInputError: a rule would have no effect in the policy of an account.
    """
    if policy.approvers_to_create_population is not None:
        raise InvalidInputError(
            "`approvers_to_create_population` belongs to the organisation's policy: a population opens no population."
        )
    if policy.approvers_to_raise_limit == 1:
        raise InvalidInputError(
            "`approvers_to_raise_limit` 1 belongs to the organisation's policy: an account's can only require 2. Leave "
            "it out here."
        )


def stricter(one: Policy, other: Policy) -> Policy:
    """Combine two policies, rule by rule the stricter one.

    The operation is associative and commutative with identity `EMPTY_POLICY`, so the order of a path does not matter.
    """
    together = {}
    for name, rule in RULES.items():
        first, second = getattr(one, name), getattr(other, name)
        together[name] = second if first is None else first if second is None else rule.stricter(first, second)
    return Policy(**together)


@lru_cache(maxsize=4096)
def effective(sources: tuple[PolicySource, ...]) -> Policy:
    """Combine policies to the strictest.

    `approvers_to_raise_limit` and `deviations` are always set. One person suffices only if the organisation's
    policy allows it: an account's policy never loosens the default.
    """
    house = next((source.policy for source in sources if source.path == ORGANISATION), EMPTY_POLICY)
    base = Policy(
        approvers_to_raise_limit=house.approvers_to_raise_limit or PERSONS,
        approvers_to_create_population=OPENERS,
        deviations=DeviationHandling.FLAG,
    )
    further = [
        source.policy if source.path != ORGANISATION else replace(source.policy, approvers_to_raise_limit=None)
        for source in sources
    ]
    return reduce(stricter, further, base)


def loosened(before: Policy, after: Policy, *, of_organisation: bool) -> tuple[str, ...]:
    """Find the fields of a policy that a new one loosens.

    A rule is loosened unless the stricter of its two values is the new one, also if neither is stricter, as with two
    lists that do not contain each other. The organisation's defaults differ from an account's.
    """
    found = []
    for name, rule in RULES.items():
        default = DEFAULT_RULES[name] if of_organisation else rule.default
        first, second = (_effective_value(policy, name, default) for policy in (before, after))
        if first is not None and (second is None or rule.stricter(first, second) != second):
            found.append(name)
    return tuple(found)


def _effective_value(policy: Policy, name: str, default: object) -> object:
    value = getattr(policy, name)
    return default if value is None or value is False else value


def facts_of(policy: Policy) -> dict[str, Any]:
    """Convert a policy to JSON without its missing rules."""
    facts: dict[str, Any] = {}
    for each in fields(policy):
        value = getattr(policy, each.name)
        if value is not None and value is not False:
            facts[each.name] = sorted(map(str, value)) if isinstance(value, frozenset) else value
    return facts


def policy_of(facts: Mapping[str, Any]) -> Policy:
    """Parse a policy that was written by `facts_of`."""
    return Policy(**{name: _READERS[name](value) for name, value in facts.items()})


def _reader(annotation: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - a type
    """Get what reads a JSON value of an optional type."""
    kind = next(iter(get_args(annotation)), annotation)
    if get_origin(kind) is frozenset:
        (item,) = get_args(kind)
        return lambda names: frozenset(map(item, names))
    return kind if issubclass(kind, StrEnum) else lambda value: value


_READERS: Final = {name: _reader(annotation) for name, annotation in get_type_hints(Policy).items()}


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
        lambda policy: policy.require_plan is not None or policy.deviations is not DeviationHandling.REFUSE,
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
