"""Check that balances follow from charges, in sequence and over disjoint partitions, and that filters admitted them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from app.accounting.curves import RdpCurve, orders
from app.accounting.errors import AccountingError
from app.accounting.events import event_from_canonical
from app.accounting.rdp import FORMULA_VERSION, event_curve
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.admission.composition import counting_plans
from app.ledger.filter.parallel_exposure import held_of, largest
from app.ledger.plan.plans import is_allowed
from app.ledger.verification import Discrepancy
from app.persistence.repositories import dp_events
from app.persistence.repositories.dp_events import StoredCost
from app.persistence.repositories.raw_rows import Key
from app.persistence.tolerant_rows import DAMAGED
from app.service.verification.filter_choices import filter_problems
from app.service.verification.report import Balance, VerificationContext

TOLERANCE = 1e-9
"""Relative tolerance of costs and epsilon between processors and library versions."""


def read_prices(audit: VerificationContext, organisation_id: str | None) -> None:
    """Collect the sound costs in `audit`, and report the others."""
    for owner, key, description in dp_events.descriptions(audit.tx, organisation_id, audit.report):
        if hashlib.sha256(description).hexdigest() != key:
            detail = f"event {key[:12]}: its description {description.decode()!a} has another fingerprint."
            audit.discrepancies.append(Discrepancy(owner, None, None, detail))
    for stored in dp_events.list_all(audit.tx, organisation_id, audit.report):
        problem = price_problem(stored)
        if problem:
            detail = f"event {stored.fingerprint[:12]}: {problem}"
            audit.discrepancies.append(Discrepancy(stored.prices.organisation_id, None, None, detail))
        else:
            audit.sound.add((stored.prices, stored.fingerprint))


def price_problem(stored: StoredCost) -> str | None:
    """Recompute a stored cost; return the discrepancy, or None."""
    if stored.formula_version != FORMULA_VERSION:
        return f"its price is of the formulas {stored.formula_version}, of which this version knows nothing."
    relation, grid_version = stored.prices.relation, stored.prices.grid_version
    try:
        fresh = event_curve(event_from_canonical(stored.canonical_json), relation, grid_version)
    except DAMAGED as error:
        return f"under {relation} and grid {grid_version} it cannot be priced: {error}"
    same_grid = fresh.values.shape == stored.curve.values.shape
    if (
        same_grid
        and all(
            _agree(now, kept) for now, kept in ((fresh.values, stored.curve.values), (fresh.delta, stored.curve.delta))
        )
        and all(map(_agree_exactly, fresh.exact, stored.curve.exact))
    ):
        return None
    return f"its price under {relation} and grid {grid_version} is not what {stored.canonical_json.decode()} costs."


def _agree_exactly(fresh: int, stored: int) -> bool:
    """Whether two exact losses are equal up to the tolerance: those that are no quotients are computed."""
    return abs(stored - fresh) <= Fraction(TOLERANCE) * fresh


def _agree(fresh: ArrayLike, stored: ArrayLike) -> bool:
    """Whether two costs are equal up to the tolerance."""
    now, kept = np.asarray(fresh, float), np.asarray(stored, float)
    slack = TOLERANCE * now + 2
    return bool((np.abs(kept - now) <= slack).all())


@dataclass(frozen=True, slots=True)
class _Value:
    """Recomputed balance of an account; `composed` if there are disjoint partitions under it.

    Args:
        held: of active reservations; with partitions, meaningful only together with `spent`.
        admitted: spent and held without reports, which no decision admitted beforehand.
    """

    spent: RdpCurve
    held: RdpCurve
    admitted: RdpCurve
    composed: bool

    def __add__(self, other: "_Value") -> "_Value":
        """Add two balances."""
        spent, held, admitted = self.spent + other.spent, self.held + other.held, self.admitted + other.admitted
        return _Value(spent, held, admitted, self.composed or other.composed)

    def counted_by(self, account: Account) -> "_Value":
        """Leave only the usage of plans that an account counts."""
        curves = [_counted(account, curve) for curve in (self.spent, self.held, self.admitted)]
        return _Value(curves[0], curves[1], curves[2], self.composed)

    def is_kept(self, account: Account) -> tuple[bool, bool]:
        """Whether the account's row has these spent and held curves."""
        if self.composed:  # the reserved share of the largest depends on the partition
            return account.spent == self.spent, account.spent + account.held == self.spent + self.held
        return account.spent == self.spent, account.held == self.held


def _counted(account: Account, curve: RdpCurve) -> RdpCurve:
    return curve.using(
        {owner: curve.used.get(owner, (0,) * len(stored)) for owner, stored in account.spent.used.items()}
    )


def check_balance(audit: VerificationContext, key: Key) -> None:
    """Check an account whose charging runs have all been replayed."""
    # The accounts that a charge affects have a table of their own; it must have every ancestor.
    account = audit.balances[key].account
    above = [(balance.account.id, balance.account.depth) for balance in audit.above(key)]
    if audit.paths.pop(key, []) != [*above, (account.id, account.depth)]:
        audit.add(key, "the accounts that a charge to it touches are not those above it.")
    if account.kind is AccountKind.RUN and audit.charged.pop(key, [])[:1] != [account.parent_id]:
        audit.add(key, "the first budget that it charges is not its parent.")
    if account.partitions_per_unit is not None and key not in audit.attested:
        audit.add(key, "no attestation says that its parts are disjoint.")
    for detail in _disagreements(audit, key, audit.balances[key]):
        audit.add(key, detail)


def is_readable(account: Account) -> bool:
    """Whether an account's filter weights are valid for its limit and orders."""
    if account.weights is None or account.limit is None:
        return True
    known = range(orders(account.grid_version).size)
    places = all(type(index) is int and index in known for index in account.weights.indices)  # JSON allows other types
    return places and account.weights.within(account.limit.delta)


def _disagreements(audit: VerificationContext, key: Key, balance: Balance) -> Iterator[str]:
    account = balance.account
    value = _value_of(audit, key)
    if value is None:
        yield "an event without a sound price was charged to it or is held."
        return
    spent_agrees, held_agrees = value.is_kept(account)
    if not spent_agrees:
        summed = "those of its parts that have lost most" if account.partitions_per_unit else "its charges"
        yield f"its spent curve is not the sum of {summed}."
    if balance.counts is not None and balance.counts != {event: each for event, each in balance.spent.items() if each}:
        yield "its counts of charges by event are not those of its charges."
    if not held_agrees:
        yield "the reserved curve differs from its active reservations."
    above = [balance.account for balance in audit.above(key)]
    lacking = counting_plans(account, above).spent.used.keys() - account.spent.used.keys()
    if lacking:
        yield f"it does not count what it uses up of the plan of {min(lacking)}."
    if account.weights is not None and (account.limit is None or account.limit.is_exact):
        yield "it has no limit of its own that a filter keeps, and yet it has the weights of a filter."
    known = [stage.limit for stage in audit.stages(key) if stage.limit is not None]
    limits = balance.limits - set(known)
    if limits:
        named = ", ".join(sorted(map(str, limits)))
        yield f"its limit is not the one under which decisions were made: {named}."
    if account.limit is not None and not (value.spent.is_zero and value.held.is_zero):
        yield from _limit_problems(audit, key, balance, value.admitted)
    elif account.weights is not None and not account.planned:
        yield from filter_problems(audit, key)


def _value_of(audit: VerificationContext, key: Key) -> _Value | None:
    """Recompute an account's balance from its charges; None: an event has no sound cost."""
    balance = audit.balances[key]
    account = balance.account
    if account.parts_that_count is not None:
        composed = _of_parts(audit, key, account.parts_that_count)
        return None if composed is None else composed.counted_by(account)
    spent = audit.cost(key[0], account, balance.spent)
    held = audit.cost(key[0], account, balance.held)
    admitted = audit.cost(key[0], account, balance.spent - balance.reported)
    if spent is None or held is None or admitted is None:
        return None
    total: _Value | None = _Value(spent, held, admitted + held, composed=False)
    for part in _topmost(audit, key):
        inner = _value_of(audit, part)
        total = None if total is None or inner is None else total + inner
    return None if total is None else total.counted_by(account)


def _current_of(audit: VerificationContext, key: Key) -> tuple[RdpCurve, bool] | None:
    """Compute the admitted spending plus the steps that active reservations may still take.

    Reported and cancelled steps are left out: they may exceed the limit in force.

    Returns:
        The curve, and whether a reservation may take steps; None: an event has no sound cost.
    """
    balance = audit.balances[key]
    account = balance.account
    if account.parts_that_count is not None:
        parts = [_current_of(audit, child) for child in audit.children.get(key, ())]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        zero = zero_curve(account.grid_version)
        return largest([zero, *(curve for curve, _ in known)], account.parts_that_count), any(may for _, may in known)
    counts = balance.spent - balance.reported - balance.revoked + balance.allowed
    total, may = audit.cost(key[0], account, counts), balance.left > 0
    for part in _topmost(audit, key):
        inner = _current_of(audit, part)
        total = None if total is None or inner is None else total + inner[0]
        may = may or (inner is not None and inner[1])
    return None if total is None else (total, may)


def _topmost(audit: VerificationContext, key: Key) -> list[Key]:
    """List the topmost parallel accounts under a sequential one."""
    found: list[Key] = []
    for child in audit.children.get(key, ()):
        parallel = audit.balances[child].account.partitions_per_unit is not None
        found.extend([child] if parallel else _topmost(audit, child))
    return found


def _of_parts(audit: VerificationContext, key: Key, most: int) -> _Value | None:
    """Sum the largest partitions at each order."""
    zero = zero_curve(audit.balances[key].account.grid_version)
    spent, total, admitted = [zero], [zero], [zero]
    for child in audit.children.get(key, ()):
        part = _value_of(audit, child)
        if part is None:
            return None
        spent.append(part.spent)
        total.append(part.spent + part.held)
        admitted.append(part.admitted)
    lost = largest(spent, most)
    return _Value(lost, held_of(lost, largest(total, most)), largest(admitted, most), composed=True)


def _limit_problems(audit: VerificationContext, key: Key, balance: Balance, admitted: RdpCurve) -> Iterator[str]:
    account = balance.account
    if not account.has_filter:
        yield "it was charged, but its filter weights are not frozen."
        return
    if not is_readable(account):
        yield "its filter weights sum to more than its delta, or name orders that there are not."
        return
    yield from filter_problems(audit, key)
    try:
        for stage in audit.stages(key):
            yield from _bound_problems(stage)
    except AccountingError as error:
        yield f"what it planned cannot be priced: {error}"
    # Reports were not admitted; everything else was, and fits without them.
    # If nothing was admitted, nothing has to fit: a report may have chosen weights that admit nothing.
    if admitted.is_zero:
        return
    # Admitted charges fitted under the limit then in force.
    if not any(_fits(stage, admitted) for stage in _stages_in_unit(audit, key) if stage.has_filter):
        yield "more is spent and held than its limit allows."
    yield from _plan_problems(audit, key, balance)


def _stages_in_unit(audit: VerificationContext, key: Key) -> list[Account]:
    """List the account under each limit in the present unit: under one in another unit nothing was released."""
    stages = audit.stages(key)
    limit = stages[-1].limit
    return [each for each in stages if each.limit is not None and limit is not None and each.limit.has_rule_of(limit)]


def _plan_problems(audit: VerificationContext, key: Key, balance: Balance) -> Iterator[str]:
    """Check that active reservations fit under a changed limit (ADR 0026)."""
    if len(audit.stages(key)) == 1:
        return
    current = _current_of(audit, key)
    if current is not None and current[1] and not _fits(balance.account, current[0]):
        yield "active plans may take more than its limit allows since that was lowered."


def _bound_problems(account: Account) -> Iterator[str]:
    """Check that a limit allows what is stored of a plan: its delta, not that no further step would fit."""
    if account.plan is None or account.limit is None:
        return
    bound = account.plan.bound
    if not is_allowed(account.planned, account.relation, account.limit.value, bound):
        yield f"its limit does not allow {bound.steps} steps of its plan, or they have another epsilon."


def _fits(account: Account, admitted: RdpCurve) -> bool:
    nothing = zero_curve(account.grid_version)
    return replace(account, spent=_counted(account, admitted), held=nothing, exposure=None).fits()
