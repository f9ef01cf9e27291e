"""Policies: rules for runs that only get stricter down the tree, and warnings about ineffective ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Final

from app.accounting.events import NeighboringRelation, NoOp
from app.accounting.events.base import EVENT_TYPES
from app.ledger.errors import InvalidInputError
from app.ledger.permissions import PERMISSIONS, Permission, Role, holders

PERSONS: Final = 2
"""Default number of persons to raise a limit."""

OPENERS: Final = 1
"""Default number of persons to create a population."""

PERSON_RULES: Final = ("approvers_to_raise_limit", "approvers_to_create_population")
"""Rules that only the organisation's policy sets, or loosens."""

ORGANISATION: Final = "organisation"
"""The path of the organisation's own policy."""

LEAVES: Final = tuple(
    sorted(declared.name for cls, declared in EVENT_TYPES.items() if declared.is_mechanism and cls is not NoOp)
)
"""Mechanisms that a policy may allow: event types that contain no other event, and release something."""


class Deviations(StrEnum):
    """The consequence of steps that differ from their run's declaration."""

    FLAG = "flag"
    REFUSE = "refuse"


class PlanRule(StrEnum):
    """What a run's plan has to be: declared, or also kept to while its accounts' plans hold."""

    DECLARE = "declare"
    STAY = "stay"


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules for runs; None: no rule.

    Args:
        max_epsilon: of a run.
        max_delta: of a run, and of an account's limit.
        require_delta_below_inverse_size: whether the population's size must be known, and every delta be below 1/size.
        require_limit: whether a run needs a limit of its own.
        require_plan: whether a run needs a plan, or planned events, and whether steps may end an account's plan.
        mechanisms: the allowed ones, also inside other events.
        neighboring_relations: the allowed ones.
        min_noise_multiplier: of every mechanism that has one, also inside other events.
        approval_above_epsilon: a run with a larger epsilon needs another person's approval before its first step.
        max_unapproved_epsilon_per_budget: total of runs without a second person's approval under the account of
            the policy, or under each population for the organisation's; a further run needs approval.
        report_roles: roles that may report executed steps (`mode: "report"`), besides admin.
        approvers_to_raise_limit: persons needed to raise a limit, 1 or 2.
        approvers_to_create_population: persons needed to create a population, 1 or 2; of the organisation only.
        deviations: the consequence of steps that differ from the run's declaration.

    Raises:
        InvalidInputError: a mechanism is unknown, or a role never reports.
    """

    max_epsilon: float | None = None
    max_delta: float | None = None
    require_delta_below_inverse_size: bool = False
    require_limit: bool = False
    require_plan: PlanRule | None = None
    mechanisms: frozenset[str] | None = None
    neighboring_relations: frozenset[NeighboringRelation] | None = None
    min_noise_multiplier: float | None = None
    approval_above_epsilon: float | None = None
    max_unapproved_epsilon_per_budget: float | None = None
    report_roles: frozenset[Role] | None = None
    approvers_to_raise_limit: int | None = None
    approvers_to_create_population: int | None = None
    deviations: Deviations | None = None

    def __post_init__(self) -> None:
        """Reject unknown names: they would seem to allow something."""
        unknown = (self.mechanisms or frozenset()) - set(LEAVES)
        if unknown:
            raise InvalidInputError(f"{min(unknown)!a} is no mechanism; allow some of {', '.join(LEAVES)}.")
        silent = {role for role in self.report_roles or () if Permission.STEP_AUTHORIZE not in PERMISSIONS[role]}
        if silent:
            able = ", ".join(str(role) for role in holders(Permission.STEP_AUTHORIZE))
            raise InvalidInputError(f"The role {min(silent)} never reports; `report_roles` names some of {able}.")


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


def _later(one: StrEnum, other: StrEnum) -> StrEnum:
    """Choose the later of two members of an enum, which is the stricter one."""
    return max(one, other, key=list(type(one)).index)


_STRICTER: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "max_epsilon": min,
    "max_delta": min,
    "require_delta_below_inverse_size": or_,
    "require_limit": or_,
    "require_plan": _later,
    "mechanisms": frozenset.intersection,
    "neighboring_relations": frozenset.intersection,
    "min_noise_multiplier": max,
    "approval_above_epsilon": min,
    "max_unapproved_epsilon_per_budget": min,
    "report_roles": frozenset.intersection,
    "approvers_to_raise_limit": max,
    "approvers_to_create_population": max,
    "deviations": _later,
}

_DEFAULTS: Final[Mapping[str, Any]] = {
    "approvers_to_raise_limit": 1,
    "approvers_to_create_population": OPENERS,
    "deviations": Deviations.FLAG,
}
"""Effective values of an account policy's missing rules."""

DEFAULT_RULES: Final[Mapping[str, Any]] = {**_DEFAULTS, "approvers_to_raise_limit": PERSONS}
"""Effective values of the organisation policy's missing rules."""


def stricter(one: Policy, other: Policy) -> Policy:
    """Combine two policies, rule by rule the stricter one.

    The operation is associative and commutative with identity `EMPTY_POLICY`, so the order of a path does not matter.
    """
    together = {}
    for name, choose in _STRICTER.items():
        first, second = getattr(one, name), getattr(other, name)
        together[name] = second if first is None else first if second is None else choose(first, second)
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
        deviations=Deviations.FLAG,
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
    defaults = DEFAULT_RULES if of_organisation else _DEFAULTS
    found = []
    for name, choose in _STRICTER.items():
        first, second = (_effective_value(policy, name, defaults) for policy in (before, after))
        if first is not None and (second is None or choose(first, second) != second):
            found.append(name)
    return tuple(found)


def _effective_value(policy: Policy, name: str, defaults: Mapping[str, Any]) -> object:
    value = getattr(policy, name)
    return defaults.get(name) if value is None or value is False else value


def facts_of(policy: Policy) -> dict[str, Any]:
    """Convert a policy to JSON without its missing rules."""
    facts: dict[str, Any] = {}
    for field in fields(policy):
        value = getattr(policy, field.name)
        if value is not None and value is not False:
            facts[field.name] = sorted(map(str, value)) if isinstance(value, frozenset) else value
    return facts


def policy_of(facts: Mapping[str, Any]) -> Policy:
    """Parse a policy that was written by `facts_of`."""
    kinds: Mapping[str, Callable[[Any], Any]] = {
        "mechanisms": frozenset,
        "neighboring_relations": lambda names: frozenset(map(NeighboringRelation, names)),
        "report_roles": lambda names: frozenset(map(Role, names)),
        "deviations": Deviations,
        "require_plan": PlanRule,
    }
    return Policy(**{name: kinds[name](value) if name in kinds else value for name, value in facts.items()})


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
        lambda policy: policy.require_plan is not None or policy.deviations is not Deviations.REFUSE,
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
