"""Change the limit of a live account while its filter stays (ADR 0020)."""

from dataclasses import dataclass, replace
from datetime import datetime

from app.ledger.accounts import Account
from app.ledger.filters import FilterWeights, Limit

SLACK = 1.0 - 1e-12
"""Rounding margin, so that scaled parts and reserve sum to at most the new delta."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The latest change of an account's limit; an increase is by its approver."""

    before: Limit
    at: datetime
    actor: str


def is_raised(before: Limit, after: Limit) -> bool:
    """Check whether the new limit may admit more."""
    return after.epsilon > before.epsilon or after.delta > before.delta


def is_lowered(before: Limit, after: Limit) -> bool:
    """Check whether the new limit may admit less; a raise may do both."""
    return after.epsilon < before.epsilon or after.delta < before.delta


def with_limit(account: Account, limit: Limit) -> Account:
    """Copy an account with a new limit and the next limit revision (ADR 0020).

    An account without charges and holds chooses its weights anew; otherwise the orders stay, and their shares of delta.
    """
    assert account.limit is not None, "only a limit can be changed"
    weights = account.weights
    untouched = account.spent.is_zero and account.held.is_zero
    if weights is not None:
        weights = None if untouched else rescale_weights(weights, account.limit, limit)
    return replace(
        account, limit=limit, limit_revision=account.limit_revision + 1, weights=weights, version=account.version + 1
    )


def rescale_weights(weights: FilterWeights, before: Limit, after: Limit) -> FilterWeights:
    """Scale weights to another limit: same orders, same shares of delta.

    No share grows. If delta is raised, no part shrinks, so that the filter admits all that it admitted before.
    """
    if after.delta == before.delta:
        return weights
    factor = after.delta / before.delta
    kept = (*weights.deltas, weights.reserve)
    parts = tuple(part * factor * SLACK for part in kept)
    if after.delta > before.delta:
        parts = tuple(map(max, parts, kept))
    changed = FilterWeights(weights.indices, parts[:-1], parts[-1])
    assert changed.within(after.delta), "the parts of delta are within it"
    return changed
