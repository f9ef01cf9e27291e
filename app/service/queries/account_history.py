"""Read model of an account's spending over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from itertools import accumulate, islice
from math import ceil
from typing import Final

import numpy as np
from sqlalchemy import Connection

from app.accounting.conversion import spread
from app.accounting.curves import EXHAUSTED, UNIT, RdpCurve
from app.accounting.exact_losses import PER_NAT, UNBOUNDED_LOSSES
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.admission.admission import LimitChange
from app.ledger.errors import NotFoundError
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import dp_events, overview_queries, usage_history
from app.persistence.repositories.dp_events import CostTable
from app.persistence.repositories.limit_changes import list_limit_changes
from app.persistence.repositories.usage_history import ChargedRun, Sample
from app.service.accounts.epsilons import read_epsilon, read_epsilons_of
from app.service.accounts.lookup import find_account
from app.service.auth.request_context import RequestContext
from app.service.queries.spend_series import SpendSeries, curve_at, spend_series

SAMPLES: Final = 4_000
"""Decisions read for one history: a tenth of a second for a thousand runs with a million steps."""

EVENTS: Final = 4
"""Events read per decision."""

MOST_CHILDREN: Final = 7
"""Children with their own series; the others are summed."""

REMEMBERED: Final = 500
CHANGES: Final = 50


@dataclass(frozen=True, slots=True)
class ChildShare:
    """A child's part of the account's used share at each moment; without an id, of all other children together.

    The parts add up, since they are those of the one coordinate of the filter that decides.
    """

    account_id: str | None
    path: str
    kind: AccountKind | None
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AccountHistory:
    """What was charged to an account over time.

    Args:
        moments: creation of the account, then times of charges, evenly thinned out.
        epsilons: at each moment, of all that was charged before, at the account's present delta.
        used: share of the account's present capacity at each moment.
        children: the largest share at the last moment first.
        decisions: number of decisions under the account; `read` of them were used.
        exact: whether all charges were read; otherwise only the end is exact, and charges between samples are evenly
            spread.
    """

    account: Account
    moments: tuple[datetime, ...]
    epsilons: tuple[float, ...]
    used: tuple[float, ...]
    children: tuple[ChildShare, ...]
    changes: tuple[LimitChange, ...]
    decisions: int
    read: int
    exact: bool


class AccountHistoryCache:
    """Cached histories; safe to use from any thread."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, str, int], tuple[tuple[object, ...], AccountHistory]] = LruCache(REMEMBERED)

    def read(self, context: RequestContext, account_id: str, max_points: int) -> AccountHistory:
        """Get the history of a population or budget, with at least 2 points."""
        with context.read() as tx:
            record = find_account(tx, context, account_id)
            if record.account.kind is AccountKind.RUN:
                raise NotFoundError(f"{account_id} is a run; its history is at /v1/runs/{account_id}/history.")
            return self.read_in(tx, context, record, max_points)

    def read_in(
        self, tx: Connection, context: RequestContext, record: AccountRecord, max_points: int
    ) -> AccountHistory:
        """Get the history of an account that the caller may read, within a transaction."""
        account = record.account
        key = (context.organisation_id, account.id, max_points)
        mark = (account.version, record.updated_at, account.limit_revision, account.path)
        kept = self._known.get(key)
        if kept is None or kept[0] != mark:
            kept = (mark, _made(tx, context.organisation_id, record, max_points))
            self._known.put(key, kept)
        return replace(kept[1], account=account, changes=_changes(tx, context.organisation_id, account))


def _made(tx: Connection, organisation_id: str, record: AccountRecord, max_points: int) -> AccountHistory:
    """Read a history, without the changes of the limit."""
    account = record.account
    parts = usage_history.charged_runs(tx, organisation_id, account.id)
    decisions = sum(part.decisions for part in parts)
    each = max(1, SAMPLES // max(1, len(parts)))
    found = [one for one in usage_history.sample_decisions(tx, organisation_id, account.id, each) if one.charged]
    if not found or account.spent.is_zero:
        return AccountHistory(account, (), (), (), (), (), decisions, len(found), exact=True)
    events = usage_history.events_of(tx, organisation_id, account.id, each, EVENTS)
    prices = CostTable.of(organisation_id, account)
    keys = {key for one in found for key, _ in events.get((one.run_id, one.position), ())}
    moments = _moments(record, found, max_points)
    whole = all(part.decisions <= each for part in parts)
    grown = spend_series(
        found,
        events,
        {part.run_id: _series_of(account, part) for part in parts},
        _with_plan(tx, organisation_id, account, dp_events.find_curves(tx, prices, keys)),
        moments,
        whole=whole,
    )
    most, end = account.parts_that_count, _extended(account, account.spent, account.spent.used.get(account.id, ()))
    exact = whole and grown.ends_with(end, most)
    if not exact:
        grown = grown.scaled(end, most)
    curves, deltas = grown.total(most)
    before = [curve_at(values, float(delta)) for values, delta in zip(curves[:-1], deltas[:-1], strict=True)]
    spent = [_divided(account, curve) for curve in before]
    return AccountHistory(
        account=account,
        moments=tuple(moments),
        epsilons=_epsilons(tx, organisation_id, record, grown, spent),
        used=(*(account.used(curve) for curve in spent), account.used()),
        children=_shares(tx, organisation_id, account, grown),
        changes=(),
        decisions=decisions,
        read=sum(min(part.decisions, each) for part in parts),
        exact=exact,
    )


def _epsilons(
    tx: Connection, organisation_id: str, record: AccountRecord, grown: SpendSeries, spent: Sequence[RdpCurve]
) -> tuple[float, ...]:
    """Compute the epsilon at each moment: the last one as it is read, and none before larger."""
    account, last = record.account, read_epsilon(tx, organisation_id, record)
    assert account.limit is not None, "populations and budgets have limits"
    delta, most = account.limit.shown_delta, account.parts_that_count
    alternatives = [grown.counts_that_matter(place, most) or () for place in range(len(spent))]
    found = read_epsilons_of(tx, organisation_id, account.relation, delta, alternatives)
    by_curves = [replace(account, spent=curve).rdp_epsilon(delta) for curve in spent]
    bounds = [min(pair) for pair in zip(found, by_curves, strict=True)]
    rising = list(accumulate([last, *reversed(bounds)], min))  # what was charged before never has a larger epsilon
    return tuple(reversed(rising))


def _series_of(account: Account, part: ChargedRun) -> tuple[str, ...]:
    """List the series that a run's charges belong to: those of the children that it charges.

    Where losses add up, a charge through several children counts once: such a run has a series of its own.
    """
    once = account.partitions_per_unit is None and len(part.children) > 1
    return (part.run_id,) if once else part.children


def _with_plan(
    tx: Connection, organisation_id: str, account: Account, curves: Mapping[str, RdpCurve]
) -> Mapping[str, RdpCurve]:
    """Add to the costs of events, as further orders, what they use up of an account's plan and its exact loss."""
    plan = account.plan
    if plan is None:
        return {key: _extended(account, curve, ()) for key, curve in curves.items()}
    events = dp_events.find_events(tx, organisation_id, curves)
    return {
        key: _extended(account, curve, plan.workload.cost(events[key]))
        for key, curve in curves.items()
        if key in events
    }


def _extended(account: Account, curve: RdpCurve, used: Sequence[int]) -> RdpCurve:
    exact = ceil(Fraction(account.bounds().exact_loss(curve), PER_NAT) / Fraction(UNIT))
    further = np.array([min(each, EXHAUSTED) for each in (*used, exact)], dtype=np.int64)
    return RdpCurve(np.concatenate([curve.values, further]), curve.delta)


def _divided(account: Account, curve: RdpCurve) -> RdpCurve:
    """Take a curve, the usage of an account's plan and its exact loss apart."""
    size, gate = account.spent.values.size, account.bounds()
    *counts, exact = curve.values[size:].tolist()
    used = {account.id: tuple(counts)} if account.id in account.spent.used else {}
    loss = gate.unbounded if exact == EXHAUSTED else min(ceil(exact * Fraction(UNIT) * PER_NAT), gate.unbounded)
    losses = UNBOUNDED_LOSSES.with_loss(gate.coordinate, loss)
    return RdpCurve(curve.values[:size], curve.delta, used, losses)


def _moments(record: AccountRecord, found: Sequence[Sample], max_points: int) -> list[datetime]:
    """Choose the creation of the account and times of charges."""
    times = sorted({one.at for one in found})
    return [min(record.created_at, times[0]), *(times[at] for at in spread(0, len(times), max_points - 1))]


def _shares(tx: Connection, organisation_id: str, account: Account, grown: SpendSeries) -> tuple[ChildShare, ...]:
    """Get each child's part of the used share, at the order that admits the most, or of the plan if that does."""
    found = _deciding(account)
    if found is None:
        return ()
    place, bound = found
    shares = {child: grown.through(child, place) / bound for child in grown.counts}
    ranked = sorted(shares, key=lambda child: (-float(shares[child][-1]), child))
    named = ranked[:MOST_CHILDREN] if len(ranked) > MOST_CHILDREN + 1 else ranked
    names = overview_queries.statuses_of(tx, organisation_id, named)
    children = [
        ChildShare(child, names[child].path_title, names[child].kind, tuple(shares[child].tolist())) for child in named
    ]
    others = ranked[len(named) :]
    if others:
        rest = np.sum([shares[child] for child in others], axis=0)
        children.append(ChildShare(None, f"{len(others)} others", None, tuple(rest.tolist())))
    return tuple(children)


def _deciding(account: Account) -> tuple[int, float] | None:
    """Find the order, the plan's mechanism or the exact loss that decides, and its threshold; None: none fits.

    Mechanisms are behind the orders, and the exact loss behind these.
    """
    gate, plan = account.bounds(), account.plan
    spent = account.spent.values[gate.places]
    usable = (gate.bounds > 0) & (spent < EXHAUSTED)
    shares = np.where(usable, spent / np.maximum(gate.bounds, 1), np.inf)
    chosen = int(np.argmin(shares))
    found, share = (
        (int(gate.places[chosen]), float(gate.bounds[chosen])) if usable.any() else None,
        float(shares[chosen]),
    )
    exactly = gate.exact_share(gate.exact_loss(account.spent))
    if exactly < share:
        last = account.spent.values.size + len(account.spent.used.get(account.id, ()))
        found, share = (last, gate.most / PER_NAT / UNIT), exactly
    if plan is None or plan.share(account.spent.used[account.id]) > share:
        return found
    used = zip(account.spent.used[account.id], plan.capacity, strict=True)
    by_share = [each / most if most else 0.0 for each, most in used]
    scarcest = max(range(len(by_share)), key=by_share.__getitem__)
    return account.spent.values.size + scarcest, float(max(plan.capacity[scarcest], 1))


def _changes(tx: Connection, organisation_id: str, account: Account) -> tuple[LimitChange, ...]:
    return tuple(islice(list_limit_changes(tx, organisation_id, account, oldest_first=True), CHANGES))
