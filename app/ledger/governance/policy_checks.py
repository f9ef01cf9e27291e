"""Check requests against the rules of a path: its windows, attestations and policies."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import inf
from typing import Final

from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    DpEvent,
    NeighboringRelation,
    NoOp,
    mechanisms_in,
    smallest_noise,
    type_name,
    unbounded_on_removal,
    without_no_ops,
)
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import EndedPlan
from app.ledger.errors import AccountClosedError, PolicyViolationError, ReservationRequiredError
from app.ledger.filter.limits import Limit, Unit
from app.ledger.permissions import Role
from app.ledger.runs.deviations import Deviation
from app.ledger.runs.origins import Origins
from app.ledger.settings.policies import ORGANISATION, PolicySource
from app.ledger.settings.policy_rules import DeviationHandling, Policy, RequirePlan
from app.ledger.settings.windows import ALWAYS
from app.ledger.wording import joined

Mismatch = tuple[object, object]
"""The requested and the allowed value."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A request that a policy of an account path, or of the "organisation", forbids."""

    path: str
    rule: str
    value: object
    allowed: object

    def error(self) -> PolicyViolationError:
        """Create the error of this violation."""
        whose = "The organisation's policy" if self.path == ORGANISATION else f"The policy of {self.path}"
        return PolicyViolationError(
            f"{whose} does not allow this: {self.rule} is {_format_value(self.allowed)}, "
            f"and this is {_format_value(self.value)}.",
            policy=self.path,
            rule=self.rule,
            value=None if self.value == inf else self.value,
            allowed=self.allowed,
        )


@dataclass(frozen=True, slots=True)
class Size:
    """The declared loss of a run by its limit, plan or governing limit; `limit` is set if it is by a limit."""

    epsilon: float
    delta: float
    limit: Limit | None = None

    @classmethod
    def of(cls, limit: Limit) -> "Size":
        """Get that of a limit: in rho or mu, its epsilon at the delta at which that is shown."""
        return cls(limit.epsilon, limit.shown_delta, limit)

    def epsilon_under(self, policy: Policy) -> float:
        """Compute the epsilon that a policy judges: of rho and mu at the policy's delta, if that is smaller."""
        limit, most = self.limit, policy.max_delta
        if limit is None or limit.unit is Unit.EPSILON or most is None:
            return self.epsilon
        return limit.epsilon_at(min(self.delta, most))

    @property
    def judged_delta(self) -> float:
        """The delta that policies judge: of a limit its own."""
        return self.delta if self.limit is None else self.limit.delta


def require_open(path: Iterable[Account], now: datetime, wait_until: datetime | None = None) -> None:
    """Raise AccountClosedError unless all accounts that a new charge touches are open, or it may wait for that."""
    for account in path:
        window = account.window
        if window is ALWAYS or window.holds(now):
            continue
        if wait_until is not None and window.opens_at is not None and now < window.opens_at < wait_until:
            continue
        opens, closes = (
            window.opens_at and window.opens_at.isoformat(),
            window.closes_at and window.closes_at.isoformat(),
        )
        late = window.opens_at is None or window.opens_at <= now
        raise AccountClosedError(
            f"{account.path} has been closed since {closes}: nothing more is taken from it. "
            "Ask for a budget that is open."
            if late
            else f"{account.path} opens at {opens}: nothing is taken from it before. Ask again then.",
            account=account.id,
            account_path=account.path,
            opens_at=opens,
            closes_at=closes,
        )


def require_plan_on(path: Iterable[Account]) -> None:
    """Raise ReservationRequiredError if an account admits reserved steps only, for steps without a reservation."""
    for account in path:
        if account.allocation is not None:
            raise ReservationRequiredError(
                f"{account.path} shares out its budget among reservations, and these steps belong to none. Register "
                "the run with `reserve`, or reserve them: POST /v1/runs/{id}/reservations.",
                account=account.id,
                account_path=account.path,
            )


def require_bounded_on_removal(path: Sequence[Account], events: Iterable[DpEvent]) -> None:
    """Raise UnsupportedEventError for events that do not bound removal where units may leave."""
    above = next((account for account in path if account.parts_lose_units), None)
    if above is None:
        return
    for event in events:
        found = unbounded_on_removal(event)
        if found is not None:
            raise UnsupportedEventError(
                f"{type_name(found)} is not supported under {above.path}: it was attested that removal is bounded "
                "there, since a unit that is replaced may leave its part and enter another, and a record that is "
                f"missing from a {type_name(found)} event shows. Use gaussian, laplace or another noisy sum, or "
                "parallel parts for which it is attested that replaced units stay_in_their_parts."
            )


def sources_of(path: Sequence[Account]) -> tuple[PolicySource, ...]:
    """Collect the policies of a path, root first: the organisation's and the accounts'."""
    house = path[0].organisation_policy
    found = [] if house is None else [PolicySource(ORGANISATION, house)]
    found += [PolicySource(account.path, account.policy) for account in path if account.policy is not None]
    return tuple(found)


def require_relation(sources: tuple[PolicySource, ...], relation: NeighboringRelation) -> None:
    """Raise PolicyViolationError unless every policy allows a population's relation."""
    _raise_first(sources, "neighboring_relations", lambda policy: _outside(str(relation), policy.neighboring_relations))


def require_steps(sources: tuple[PolicySource, ...], relation: NeighboringRelation, events: Iterable[DpEvent]) -> None:
    """Raise PolicyViolationError unless every policy allows the events."""
    if not sources:
        return
    for event in events:
        found = _of_event(sources, relation, event)
        if found is not None:
            raise found.error()


def require_declared(sources: tuple[PolicySource, ...], found: Sequence[Deviation]) -> None:
    """Raise PolicyViolationError if a policy refuses the deviations."""
    if found:
        first = found[0]
        mismatch = f"{first.kind} {first.observed} where {first.declared} was declared"
        refused = (mismatch, str(DeviationHandling.REFUSE))
        _raise_first(
            sources, "deviations", lambda policy: refused if policy.deviations is DeviationHandling.REFUSE else None
        )


def require_reporter(sources: tuple[PolicySource, ...], role: Role) -> None:
    """Raise PolicyViolationError unless the role may report executed steps."""
    if role is not Role.ADMIN:  # executed steps must always be recordable
        _raise_first(sources, "report_roles", lambda policy: _outside(str(role), policy.report_roles))


def require_limit_allowed(sources: tuple[PolicySource, ...], limit: Limit, population_size: int | None) -> None:
    """Raise PolicyViolationError unless every policy allows a limit."""

    def below_one_over_size(policy: Policy) -> Mismatch | None:
        if not policy.require_delta_below_inverse_size:
            return None
        if population_size is None:
            return "a population of unknown size", True
        return (limit.delta, 1 / population_size) if limit.delta * population_size >= 1 else None

    _raise_first(sources, "max_delta", lambda policy: _above(limit.delta, policy.max_delta))
    _raise_first(sources, "require_delta_below_inverse_size", below_one_over_size)


def require_run(sources: tuple[PolicySource, ...], size: Size, *, limited: bool, planned: bool) -> None:
    """Raise PolicyViolationError unless every policy allows a run's registration or limit.

    `limited` and `planned` are whether it has a limit of its own, and a plan or planned workload.
    """
    _raise_first(sources, "require_limit", lambda policy: _missing(limited, policy.require_limit))
    _raise_first(sources, "require_plan", lambda policy: _without_plan(policy, planned=planned))
    _raise_first(sources, "max_epsilon", lambda policy: _above(size.epsilon_under(policy), policy.max_epsilon))
    _raise_first(sources, "max_delta", lambda policy: _above(size.judged_delta, policy.max_delta))


def require_origins(sources: tuple[PolicySource, ...], origins: Origins | None) -> None:
    """Raise PolicyViolationError if a policy requires what a run starts from, and nothing was declared."""
    undeclared = (_NO_ORIGINS, True)
    _raise_first(
        sources,
        "require_starts_from",
        lambda policy: undeclared if policy.require_starts_from and origins is None else None,
    )


@lru_cache(maxsize=8192)
def _of_event(sources: tuple[PolicySource, ...], relation: NeighboringRelation, event: DpEvent) -> Violation | None:
    released = without_no_ops(event)
    names = {type_name(leaf) for leaf in mechanisms_in(released) if leaf != NoOp()}
    noise = smallest_noise(released)

    def mechanisms(policy: Policy) -> Mismatch | None:
        return next((found for name in sorted(names) if (found := _outside(name, policy.mechanisms))), None)

    return (
        _first(sources, "neighboring_relations", lambda policy: _outside(str(relation), policy.neighboring_relations))
        or _first(sources, "mechanisms", mechanisms)
        or _first(sources, "min_noise_multiplier", lambda policy: _below(noise, policy.min_noise_multiplier))
    )


def _raise_first(sources: tuple[PolicySource, ...], rule: str, judge: Callable[[Policy], Mismatch | None]) -> None:
    found = _first(sources, rule, judge)
    if found is not None:
        raise found.error()


def _first(
    sources: tuple[PolicySource, ...], rule: str, judge: Callable[[Policy], Mismatch | None]
) -> Violation | None:
    """Find the topmost policy's violation: a change would have to start there."""
    for source in sources:
        found = judge(source.policy)
        if found is not None:
            return Violation(source.path, rule, *found)
    return None


def _above(value: float, most: float | None) -> Mismatch | None:
    return (value, most) if most is not None and value > most else None


def _below(value: float | None, least: float | None) -> Mismatch | None:
    return (value, least) if least is not None and value is not None and value < least else None


def _outside(name: str, allowed: frozenset[str] | None) -> Mismatch | None:
    return (name, sorted(map(str, allowed))) if allowed is not None and name not in allowed else None


_MISSING: Final = "not given"
_NO_ORIGINS: Final = (
    "not given. Send `starts_from`: the runs and the outside models that the training starts from, or [] if it starts "
    "from none"
)


def _without_plan(policy: Policy, *, planned: bool) -> Mismatch | None:
    return (_MISSING, str(policy.require_plan)) if policy.require_plan is not None and not planned else None


def require_plans_kept(sources: tuple[PolicySource, ...], ended: Sequence[EndedPlan]) -> None:
    """Raise PolicyViolationError if a policy refuses steps that end an account's plan."""
    if ended:
        first = ended[0]
        what = f"a step that ends the plan of {first.account.path} and gives up {first.steps_given_up} of its steps"
        if first.differences:
            names = [f"{each.parameter} {each.sent}, planned {each.planned}" for each in first.differences]
            what += f" ({joined(names)})"
        refused = (what, str(RequirePlan.STAY))
        _raise_first(
            sources, "require_plan", lambda policy: refused if policy.require_plan is RequirePlan.STAY else None
        )


def _missing(given: bool, required: bool) -> Mismatch | None:  # noqa: FBT001 - two values of the same kind
    return (_MISSING, True) if required and not given else None


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "nothing"
    return f"{value:g}" if isinstance(value, float) else "required" if value is True else str(value)
