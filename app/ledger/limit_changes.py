"""Changing a limit while the account goes on (ADR 0020): what was spent stays bounded by a filter fixed before."""

from dataclasses import dataclass, replace
from datetime import datetime

from app.ledger.accounts import Account
from app.ledger.filters import FilterWeights, Limit

SLACK = 1.0 - 1e-12
"""Parts of a new delta, and the reserve, are rounded by less than this, so that together they stay within it."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The change that brought an account's limit into force.

    Args:
        before: the limit until then.
        at: when, in UTC.
        actor: who lowered it, or approved that it is raised.
    """

    before: Limit
    at: datetime
    actor: str


def is_raised(before: Limit, after: Limit) -> bool:
    """Whether a change of the limit lets anything through that the limit before did not."""
    return after.epsilon > before.epsilon or after.delta > before.delta


def is_lowered(before: Limit, after: Limit) -> bool:
    """Whether a change of the limit may stop anything that the limit before let through; a raise may, too."""
    return after.epsilon < before.epsilon or after.delta < before.delta


def with_limit(account: Account, limit: Limit) -> Account:
    """An account under another limit.

    Args:
        account: with a limit.
        limit: the new one.

    Returns:
        The account with the next revision of its limit. If nothing was ever charged to it or held, its filter is
        tuned anew for what is planned. Else the orders of its filter stay, and each keeps its part of delta.

    Source: ADR 0020.
    """
    assert account.limit is not None, "only a limit can be changed"
    weights = account.weights
    untouched = account.spent.is_zero and account.held.is_zero
    if weights is not None:
        weights = None if untouched else rescale_weights(weights, account.limit, limit)
    return replace(
        account,
        limit=limit,
        limit_revision=account.limit_revision + 1,
        weights=weights,
        version=account.version + 1,
    )


def rescale_weights(weights: FilterWeights, before: Limit, after: Limit) -> FilterWeights:
    """Scale the weights of a filter to another limit: the same orders, each and the reserve with its share of delta.

    Args:
        weights: frozen under the limit before.
        before: the limit before.
        after: the new limit.

    Returns:
        Weights within the new delta, no part of which has a larger share of it than before. If delta was raised, no
        part is smaller than before, so that whatever the filter has let through it would let through again.
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
