"""Spending of the accounts that a proposal is about, now and if it is approved."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.accounting.errors import UnsupportedEventError
from app.ledger.accounts.account import Account, AccountKind, with_usage
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.admission.composition import exposed
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import rescale_weights
from app.ledger.governance.limit_changes import with_limit
from app.ledger.runs.run import Run
from app.ledger.step_events import PricedStep, StepEvent, is_endless, total_cost
from app.service.auth.request_context import RequestContext
from app.service.costing import cost_steps
from app.service.queries.runs import partitions_of


@dataclass(frozen=True, slots=True)
class AccountEffect:
    """An account now, and if a proposal is approved or a run takes all its steps."""

    before: Account
    after: Account

    @property
    def used(self) -> float:
        """Used share of its capacity, including reservations."""
        return _used(self.before)

    @property
    def used_after(self) -> float:
        """Used share afterwards, including reservations; at most that, where a limit changes what a plan may take."""
        return _used(self.after)


def limit_of(account: Account) -> Limit:
    """Get the limit of an account that has one."""
    assert account.limit is not None, "the caller leaves out accounts without a limit"
    return account.limit


def limit_effects(context: RequestContext, path: Sequence[AccountRecord], limit: Limit) -> tuple[AccountEffect, ...]:
    """List the account whose limit would change, first, and the readable accounts above it."""
    *above, own = (record.account for record in path)
    assert own.limit is not None, "only a limit can be changed"
    # What the new limit allows of a plan is computed when it is approved; what was spent of the plan is known now.
    weights = own.weights and rescale_weights(own.weights, own.limit, limit)
    changed = AccountEffect(own, with_limit(own, limit, weights))
    return changed, *(AccountEffect(each, each) for each in reversed(_readable(context, above)))


def run_effects(
    tx: Connection, context: RequestContext, path: Sequence[AccountRecord], run: Run
) -> tuple[AccountEffect, ...]:
    """List the readable accounts that a pending run would charge, with all its planned steps if they are known."""
    accounts = [record.account for record in path]
    planned = _planned_steps(accounts[-1], run)
    found = accounts
    steps: Sequence[PricedStep] = ()
    if planned:
        try:
            steps = context.run_with_costs(
                lambda: cost_steps(tx, context.organisation_id, accounts[0], planned, context.costs)
            )
            found = list(exposed(accounts, partitions_of(tx, context, accounts)))
        except UnsupportedEventError:
            steps = ()
    return tuple(charge_effect(each, steps) for each in reversed(_readable(context, found)) if each.limit is not None)


def _planned_steps(account: Account, run: Run) -> Sequence[StepEvent]:
    """Get the steps that a run means to take; empty: not known, or without end."""
    if account.planned and not is_endless(account.planned):
        return account.planned
    expected = run.declaration.expected_steps
    return () if run.event is None or expected is None else (StepEvent(run.event, expected),)


def charge_effect(account: Account, steps: Sequence[PricedStep]) -> AccountEffect:
    """Get what steps would change of an account."""
    if not steps:
        return AccountEffect(account, account)
    ready = account.prepared_for(steps)
    return AccountEffect(account, ready.with_hold(total_cost(with_usage([ready], steps))))


def _used(account: Account) -> float:
    return account.used(account.spent + account.held)


def _readable(context: RequestContext, path: Sequence[Account]) -> list[Account]:
    """Select the accounts of a path, ancestors first, that the caller may read; populations are always readable."""
    scope = context.principal.scope
    under, above = {scope}, {each.id for each in path}
    for each in path:
        run_under = each.kind is AccountKind.RUN and scope in above  # its parent is only the first of its budgets
        if each.parent_id in under or run_under:
            under.add(each.id)
    return [each for each in path if scope is None or each.id in under or each.kind is AccountKind.POPULATION]
