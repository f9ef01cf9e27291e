"""Does the balance of an account follow from its charges, and was it let through by its filter?"""

from collections.abc import Iterator

import numpy as np
from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.accounting.errors import AccountingError
from app.ledger.accounts import total_cost
from app.ledger.filters import SET_ASIDE, FilterKind, adaptive_weights
from app.persistence.repositories import entries
from app.persistence.repositories.entries import Key
from app.persistence.repositories.events import PriceList
from app.service.verification.findings import Audit, Balance


def check_balances(audit: Audit) -> None:
    """Hold every account against what its rows add up to.

    Args:
        audit: has replayed every run.
    """
    for key, balance in audit.balances.items():
        for detail in _disagreements(audit, key, balance):
            audit.add(key, detail)


def check_paths(tx: Connection, audit: Audit, organisation_id: str | None) -> None:
    """Hold the accounts that a charge touches against the tree: none is skipped.

    Args:
        tx: the verification's transaction.
        audit: has the accounts.
        organisation_id: whose; None: of every organisation.
    """
    paths = entries.ancestors(tx, organisation_id)
    for key in audit.balances:
        above = [balance.account.id for balance in audit.upwards(key)]
        if paths.get(key, []) != above[::-1]:
            audit.add(key, "the accounts that a charge to it touches are not those above it.")


def _disagreements(audit: Audit, key: Key, balance: Balance) -> Iterator[str]:
    account = balance.account
    spent = audit.cost(key[0], account, balance.spent)
    held = audit.cost(key[0], account, balance.held)
    if spent is None or held is None:
        yield "an event without a sound price was charged to it or is held."
        return
    if account.spent != spent:
        yield "its spent curve is not the sum of its charges."
    if account.held != held:
        yield "what is held is not what its active reservations hold."
    if account.filter is FilterKind.DECLARED and account.weights is not None:
        yield "it has a declared filter, and yet it has the weights of an adaptive one."
    if account.limit is not None and not (spent.is_zero and held.is_zero):
        yield from _limit_problems(audit, key, balance, held)


def _limit_problems(audit: Audit, key: Key, balance: Balance, held: RdpCurve) -> Iterator[str]:
    """What is wrong with the filter of an account that was charged, and with what it let through."""
    account = balance.account
    assert account.limit is not None, "only a limit has a filter"
    if not account.weights_frozen:
        yield "it was charged, but its filter weights are not frozen."
        return
    if account.weights is not None and not account.weights.within(account.limit.delta):
        yield "its filter weights sum to more than its delta."
        return
    if account.weights is not None:
        try:
            if not _chosen_by_the_rule(audit, key, balance):
                yield "its filter weights are not those of its planned workload, or of an event charged to it."
        except AccountingError as error:
            yield f"what it planned cannot be priced: {error}"
    # What was reported happened unasked; everything else was let through, and fits without it.
    asked = audit.cost(key[0], account, balance.spent - balance.reported)
    assert asked is not None, "everything charged has a price"
    own_delta = asked.delta + held.delta
    gate = account.gate(own_delta)
    if own_delta > gate.room or not np.any(gate.left(asked, held) >= 0):
        yield "more is spent and held than its limit allows."


def _chosen_by_the_rule(audit: Audit, key: Key, balance: Balance) -> bool:
    """Whether the frozen weights are those of the planned workload, or of some event that was charged or reserved."""
    account = balance.account
    assert account.limit is not None, "only a limit has weights"
    if account.planned:
        workloads = [total_cost([account.price(step) for step in account.planned])]
    else:
        prices = PriceList(key[0], account.relation, account.grid_version)
        workloads = [audit.prices[prices, event] for event in balance.workloads if (prices, event) in audit.prices]
    return any(
        adaptive_weights(account.limit, workload, account.grid_version, rule) == account.weights
        for workload in workloads
        for rule in SET_ASIDE
    )
