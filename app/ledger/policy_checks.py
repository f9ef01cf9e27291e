"""Does a policy allow it? A violation names the policy, the rule, what was asked, and what is allowed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Final

from app.accounting.events import DpEvent, NeighboringRelation, leaves, type_name
from app.ledger.accounts import Account
from app.ledger.deviations import Deviation
from app.ledger.errors import PolicyViolationError
from app.ledger.event_inspection import smallest_noise
from app.ledger.filters import Limit
from app.ledger.permissions import Role
from app.ledger.policies import ORGANISATION, Deviations, Policy, PolicySource

Found = tuple[object, object]
"""What was asked, and what is allowed instead."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What a policy forbids.

    Args:
        path: of the account whose policy forbids it, or "organisation".
        rule: the field of the policy.
        value: what was asked.
        allowed: what the policy allows.
    """

    path: str
    rule: str
    value: object
    allowed: object

    def error(self) -> PolicyViolationError:
        """The error that says so."""
        whose = "The organisation's policy" if self.path == ORGANISATION else f"The policy of {self.path}"
        return PolicyViolationError(
            f"{whose} does not allow this: {self.rule} is {_told(self.allowed)}, and this is {_told(self.value)}.",
            policy=self.path,
            rule=self.rule,
            value=None if self.value == inf else self.value,
            allowed=self.allowed,
        )


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run may spend, as far as it says.

    Args:
        epsilon: of its own limit, or of its plan, or of the limit that governs it.
        delta: at which.
    """

    epsilon: float
    delta: float


def sources_of(path: Sequence[Account]) -> tuple[PolicySource, ...]:
    """The policies that hold for a path: the organisation's, as its populations have it, and those of the accounts.

    Args:
        path: root first.
    """
    house = path[0].house_policy
    found = [] if house is None else [PolicySource(ORGANISATION, house)]
    found += [PolicySource(account.path, account.policy) for account in path if account.policy is not None]
    return tuple(found)


def require_relation(sources: tuple[PolicySource, ...], relation: NeighboringRelation) -> None:
    """Let a population be counted by a relation that every policy allows.

    Raises:
        PolicyViolationError: the relation is not allowed.
    """
    _raise_first(sources, "neighboring_relations", lambda policy: _outside(str(relation), policy.neighboring_relations))


def require_steps(sources: tuple[PolicySource, ...], relation: NeighboringRelation, events: Iterable[DpEvent]) -> None:
    """Let through what every policy allows to be done to the data.

    Args:
        sources: the policies that hold.
        relation: the population's.
        events: what is asked, planned or declared.

    Raises:
        PolicyViolationError: a mechanism, its noise or the relation is not allowed.
    """
    if not sources:
        return
    for event in events:
        found = _of_event(sources, relation, event)
        if found is not None:
            raise found.error()


def require_declared(sources: tuple[PolicySource, ...], found: Sequence[Deviation]) -> None:
    """Let steps pass that are as their run has declared them, where a policy wants that.

    Args:
        sources: the policies that hold.
        found: in what the steps differ.

    Raises:
        PolicyViolationError: they differ, and a policy refuses that.
    """
    if found:
        first = found[0]
        told = f"{first.kind} {first.observed} where {first.declared} was declared"
        refused = (told, str(Deviations.REFUSE))
        _raise_first(sources, "deviations", lambda policy: refused if policy.deviations is Deviations.REFUSE else None)


def require_reporter(sources: tuple[PolicySource, ...], role: Role) -> None:
    """Let those tell of steps that have happened who may.

    Raises:
        PolicyViolationError: the role may not.
    """
    if role is not Role.ADMIN:  # what has happened must not be forgotten, whatever policies there are
        _raise_first(sources, "report_roles", lambda policy: _outside(str(role), policy.report_roles))


def require_limit_allowed(sources: tuple[PolicySource, ...], limit: Limit, population_size: int | None) -> None:
    """Let a population, a budget or a run have a limit that every policy allows.

    Args:
        sources: the policies that hold.
        limit: new, or proposed.
        population_size: number of privacy units, if known.

    Raises:
        PolicyViolationError: its delta is too large, or nobody knows whether it is.
    """

    def below_one_over_size(policy: Policy) -> Found | None:
        if not policy.delta_below_one_over_size:
            return None
        if population_size is None:
            return "a population of unknown size", True
        return (limit.delta, 1 / population_size) if limit.delta * population_size >= 1 else None

    _raise_first(sources, "max_delta", lambda policy: _above(limit.delta, policy.max_delta))
    _raise_first(sources, "delta_below_one_over_size", below_one_over_size)


def require_run(sources: tuple[PolicySource, ...], size: Size, *, limited: bool, planned: bool) -> None:
    """Let a run be registered, or have another limit, that every policy allows.

    Args:
        sources: the policies that hold.
        size: how much it may spend.
        limited: whether it has a limit of its own.
        planned: whether it has a plan, or a planned workload.

    Raises:
        PolicyViolationError: it is too large, or says too little.
    """
    _raise_first(sources, "require_limit", lambda policy: _missing(limited, policy.require_limit))
    _raise_first(sources, "require_plan", lambda policy: _missing(planned, policy.require_plan))
    _raise_first(sources, "max_epsilon", lambda policy: _above(size.epsilon, policy.max_epsilon))
    _raise_first(sources, "max_delta", lambda policy: _above(size.delta, policy.max_delta))


@lru_cache(maxsize=8192)
def _of_event(sources: tuple[PolicySource, ...], relation: NeighboringRelation, event: DpEvent) -> Violation | None:
    names = {type_name(leaf) for leaf in leaves(event)}
    noise = smallest_noise(event)

    def mechanisms(policy: Policy) -> Found | None:
        return next((found for name in sorted(names) if (found := _outside(name, policy.mechanisms))), None)

    return (
        _first(sources, "neighboring_relations", lambda policy: _outside(str(relation), policy.neighboring_relations))
        or _first(sources, "mechanisms", mechanisms)
        or _first(sources, "min_noise_multiplier", lambda policy: _below(noise, policy.min_noise_multiplier))
    )


def _raise_first(sources: tuple[PolicySource, ...], rule: str, judge: Callable[[Policy], Found | None]) -> None:
    found = _first(sources, rule, judge)
    if found is not None:
        raise found.error()


def _first(sources: tuple[PolicySource, ...], rule: str, judge: Callable[[Policy], Found | None]) -> Violation | None:
    """The violation of the policy that is highest up: whoever would change something has to ask there first."""
    for source in sources:
        found = judge(source.policy)
        if found is not None:
            return Violation(source.path, rule, *found)
    return None


def _above(value: float, most: float | None) -> Found | None:
    return (value, most) if most is not None and value > most else None


def _below(value: float | None, least: float | None) -> Found | None:
    return (value, least) if least is not None and value is not None and value < least else None


def _outside(name: str, allowed: frozenset[str] | None) -> Found | None:
    return (name, sorted(map(str, allowed))) if allowed is not None and name not in allowed else None


_NOT_SAID: Final = "not given"


def _missing(given: bool, required: bool) -> Found | None:  # noqa: FBT001 - they are two values of one kind
    return (_NOT_SAID, True) if required and not given else None


def _told(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "nothing"
    return f"{value:g}" if isinstance(value, float) else "required" if value is True else str(value)
