"""Policies: what an organisation, or a part of one of its trees, lets runs do; beneath, they only get stricter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache, reduce
from typing import Any, Final

from app.accounting.events import NeighboringRelation
from app.ledger.errors import InvalidInputError
from app.ledger.permissions import PERMISSIONS, Permission, Role, holders

PERSONS: Final = 2
"""How many persons it takes to raise a limit, unless the organisation says otherwise."""

OPENERS: Final = 1
"""How many persons it takes to open a population, unless the organisation says otherwise."""

ORGANISATION: Final = "organisation"
"""Stands for a path where the organisation's own policy is meant."""

LEAVES: Final = (
    *("adaptive_clipping", "discrete_gaussian", "epsilon_delta", "exponential", "gaussian", "laplace"),
    *("randomized_response", "tree_aggregation", "zcdp"),
)
"""Mechanisms that a policy may allow: the types of events that hold no other."""


class Deviations(StrEnum):
    """What becomes of steps that differ from what their run has declared."""

    FLAG = "flag"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Policy:
    """What runs may do; None: nothing is said about it.

    Args:
        max_epsilon: the largest epsilon of a run.
        max_delta: the largest delta of a run, and of an account's limit.
        delta_below_one_over_size: whether the population's size must be known, and every delta be below 1/size.
        require_limit: whether a run needs a limit of its own.
        require_plan: whether a run needs a plan, or a planned workload.
        mechanisms: the only ones that are allowed, also inside other events.
        neighboring_relations: the only ones that are allowed.
        min_noise_multiplier: the smallest of every mechanism that has one, also inside other events.
        approval_above_epsilon: a run of a larger epsilon takes no steps before another person approves it.
        unapproved_epsilon_per_budget: what runs that no second person has approved may have together: under the account
            of the policy, or under each population, if it is the organisation's; a further one waits for an approval.
        report_roles: who may tell of steps that have happened (`mode: "report"`), besides an admin, who always may.
        persons_to_raise: how many persons it takes to raise a limit, 1 or 2.
        approvers_to_open_population: how many persons it takes to open a population, 1 or 2; the organisation says it.
        deviations: what becomes of steps that differ from the run's declaration.

    Raises:
        InvalidInputError: a list of what is allowed is empty, or names something twice.
    """

    max_epsilon: float | None = None
    max_delta: float | None = None
    delta_below_one_over_size: bool = False
    require_limit: bool = False
    require_plan: bool = False
    mechanisms: frozenset[str] | None = None
    neighboring_relations: frozenset[NeighboringRelation] | None = None
    min_noise_multiplier: float | None = None
    approval_above_epsilon: float | None = None
    unapproved_epsilon_per_budget: float | None = None
    report_roles: frozenset[Role] | None = None
    persons_to_raise: int | None = None
    approvers_to_open_population: int | None = None
    deviations: Deviations | None = None

    def __post_init__(self) -> None:
        """Refuse names that nothing has: they would seem to allow something."""
        unknown = (self.mechanisms or frozenset()) - set(LEAVES)
        if unknown:
            raise InvalidInputError(f"{min(unknown)!a} is no mechanism; allow some of {', '.join(LEAVES)}.")
        silent = {role for role in self.report_roles or () if Permission.STEP_AUTHORIZE not in PERMISSIONS[role]}
        if silent:
            able = ", ".join(str(role) for role in holders(Permission.STEP_AUTHORIZE))
            raise InvalidInputError(f"The role {min(silent)} never reports; `report_roles` names some of {able}.")


NOTHING_SAID: Final = Policy()


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A policy, and where it was set.

    Args:
        path: of the account, or "organisation".
        policy: as it was set there.
    """

    path: str
    policy: Policy


def _either(one: bool, other: bool) -> bool:  # noqa: FBT001 - they are two values of one kind
    return one or other


def _refused_if_ever(one: Deviations, other: Deviations) -> Deviations:
    return Deviations.REFUSE if Deviations.REFUSE in {one, other} else Deviations.FLAG


_STRICTER: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "max_epsilon": min,
    "max_delta": min,
    "delta_below_one_over_size": _either,
    "require_limit": _either,
    "require_plan": _either,
    "mechanisms": frozenset.intersection,
    "neighboring_relations": frozenset.intersection,
    "min_noise_multiplier": max,
    "approval_above_epsilon": min,
    "unapproved_epsilon_per_budget": min,
    "report_roles": frozenset.intersection,
    "persons_to_raise": max,
    "approvers_to_open_population": max,
    "deviations": _refused_if_ever,
}

_DEFAULTS: Final[Mapping[str, Any]] = {
    "persons_to_raise": 1,
    "approvers_to_open_population": OPENERS,
    "deviations": Deviations.FLAG,
}
"""What a policy of an account says by saying nothing."""

_HOUSE_DEFAULTS: Final = {**_DEFAULTS, "persons_to_raise": PERSONS}
"""What the organisation's policy says by saying nothing."""


def stricter(one: Policy, other: Policy) -> Policy:
    """What both policies together let through: rule by rule the stricter of the two.

    It is associative and commutative, and `NOTHING_SAID` changes nothing: the order of a path does not matter.
    """
    together = {}
    for name, choose in _STRICTER.items():
        first, second = getattr(one, name), getattr(other, name)
        together[name] = second if first is None else first if second is None else choose(first, second)
    return Policy(**together)


@lru_cache(maxsize=4096)
def effective(sources: tuple[PolicySource, ...]) -> Policy:
    """What holds where these policies hold: the strictest of all.

    Args:
        sources: of the organisation and of the accounts of a path, in any order.

    Returns:
        One policy. How many persons raise a limit, and what becomes of deviations, is always said. One person is
        enough only where the organisation says so: beneath, a policy makes nothing looser than it would be without it.
    """
    house = next((source.policy for source in sources if source.path == ORGANISATION), NOTHING_SAID)
    base = Policy(
        persons_to_raise=house.persons_to_raise or PERSONS,
        approvers_to_open_population=OPENERS,
        deviations=Deviations.FLAG,
    )
    beneath = [
        source.policy if source.path != ORGANISATION else replace(source.policy, persons_to_raise=None)
        for source in sources
    ]
    return reduce(stricter, beneath, base)


def loosened(before: Policy, after: Policy, *, of_organisation: bool) -> tuple[str, ...]:
    """Find the rules by which one policy lets through what the one before it did not.

    A rule is loosened unless the stricter of its two values is the new one: so where the two cannot be compared, as
    two lists of which neither holds the other, it is.

    Args:
        before: as it was set at a place.
        after: as it would be set there.
        of_organisation: whether the place is the organisation; only there it says how many persons are enough.

    Returns:
        The fields of the policy; none: the new policy is as strict, or stricter.
    """
    defaults = _HOUSE_DEFAULTS if of_organisation else _DEFAULTS
    found = []
    for name, choose in _STRICTER.items():
        first, second = (_said(policy, name, defaults) for policy in (before, after))
        if first is not None and (second is None or choose(first, second) != second):
            found.append(name)
    return tuple(found)


def _said(policy: Policy, name: str, defaults: Mapping[str, Any]) -> object:
    value = getattr(policy, name)
    return defaults.get(name) if value is None or value is False else value


def facts_of(policy: Policy) -> dict[str, Any]:
    """A policy as JSON: what it says, and nothing of what it does not."""
    facts: dict[str, Any] = {}
    for field in fields(policy):
        value = getattr(policy, field.name)
        if value is not None and value is not False:
            facts[field.name] = sorted(map(str, value)) if isinstance(value, frozenset) else value
    return facts


def policy_of(facts: Mapping[str, Any]) -> Policy:
    """A policy that was written by `facts_of`."""
    kinds: Mapping[str, Callable[[Any], Any]] = {
        "mechanisms": frozenset,
        "neighboring_relations": lambda names: frozenset(map(NeighboringRelation, names)),
        "report_roles": lambda names: frozenset(map(Role, names)),
        "deviations": Deviations,
    }
    return Policy(**{name: kinds[name](value) if name in kinds else value for name, value in facts.items()})


def named(sources: Sequence[PolicySource], path: str) -> Policy:
    """The policy that was set at a path; nothing said, if there is none."""
    return next((source.policy for source in sources if source.path == path), NOTHING_SAID)
