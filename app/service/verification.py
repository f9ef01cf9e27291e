"""Proof of the ledger: every account recomputed from the charges alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import Connection

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.errors import AccountingError
from app.accounting.events import event_from_canonical, fingerprint
from app.accounting.orders import orders
from app.accounting.rdp import event_curve
from app.ledger.accounts import Account, zero_curve
from app.ledger.runs import Run
from app.persistence.engine import Database
from app.persistence.repositories import accounts, decisions, events, runs
from app.persistence.repositories.events import PriceList, StoredPrice

PRICE_TOLERANCE = 1e-9
"""How far a stored price may lie from one that is computed now, on another processor or with another library."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was recomputed, and what did not agree.

    Args:
        accounts: how many were recomputed.
        runs: how many of them are runs.
        charges: how many admitted step events were summed.
        steps: how many steps these stand for.
        problems: a sentence for each disagreement; none if the ledger is sound.
    """

    accounts: int
    runs: int
    charges: int
    steps: int
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether everything agrees."""
        return not self.problems


@dataclass
class _Findings:
    """What a verification has found so far."""

    prices: dict[tuple[PriceList, str], RdpCurve] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    runs: int = 0
    charges: int = 0
    steps: int = 0


def verify(db: Database) -> Verification:
    """Recompute every account of every organisation from its charges, and compare the bytes.

    Args:
        db: the ledger's database.

    Returns:
        What was found; nothing is changed.
    """
    found = _Findings()
    with db.read() as tx:
        for stored in events.everything(tx):
            found.problems.extend(_price_problems(stored))
            if stored.curve.values.shape == orders(stored.prices.grid_version).shape:
                found.prices[stored.prices, stored.fingerprint] = stored.curve
        kept = {(org, record.account.id): record.account for org, record in accounts.everything(tx)}
        spent = {key: zero_curve(account.grid_version) for key, account in kept.items()}
        for org in sorted({org for org, _ in kept}):
            for run in runs.everything(tx, org):
                own = kept[org, run.account_id]
                total = _replay(tx, org, own, run, found)
                for account in _upwards(kept, org, own):
                    spent[org, account.id] = spent[org, account.id] + total
    for key, account in kept.items():
        found.problems.extend(_disagreements(account, spent[key]))
    return Verification(len(kept), found.runs, found.charges, found.steps, tuple(found.problems))


def _price_problems(stored: StoredPrice) -> Iterator[str]:
    name = f"event {stored.fingerprint[:12]} ({stored.prices.relation}, grid {stored.prices.grid_version})"
    try:
        event = event_from_canonical(stored.canonical)
        fresh = event_curve(event, stored.prices.relation, stored.prices.grid_version)
    except AccountingError as error:
        yield f"{name}: it cannot be priced: {error}"
        return
    if fingerprint(event) != stored.fingerprint:
        yield f"{name}: its description {stored.canonical.decode()} has another fingerprint."
    if fresh.values.shape != stored.curve.values.shape or not np.allclose(
        fresh.values.astype(float), stored.curve.values.astype(float), rtol=PRICE_TOLERANCE, atol=2
    ):
        yield f"{name}: its stored price is not what {stored.canonical.decode()} costs."


def _replay(tx: Connection, org: str, own: Account, run: Run, found: _Findings) -> RdpCurve:
    """A run's curve from its charges alone; gaps, overlaps and missing prices become problems."""
    name = f"{own.path} ({own.id})"
    prices = PriceList(org, own.relation, own.grid_version)
    total = zero_curve(own.grid_version)
    taken = 0
    current = -1
    for charge in decisions.charges(tx, org, run.account_id):
        if charge.position != current and charge.first_step != taken:
            found.problems.append(
                f"{name}: decision {charge.position} begins at step {charge.first_step}, not at {taken}."
            )
        current = charge.position
        curve = found.prices.get((prices, charge.event_fingerprint))
        if curve is None:
            found.problems.append(f"{name}: decision {charge.position} charged an event that has no price.")
        else:
            total = total + curve.times(charge.count)
        found.charges += 1
        taken += charge.count
    if run.next_step != taken:
        found.problems.append(f"{name}: its charges stand for {taken} steps, but its next step is {run.next_step}.")
    found.runs += 1
    found.steps += taken
    return total


def _upwards(kept: dict[tuple[str, str], Account], org: str, leaf: Account) -> Iterator[Account]:
    account: Account | None = leaf
    while account is not None:
        yield account
        account = kept.get((org, account.parent_id)) if account.parent_id else None


def _disagreements(account: Account, recomputed: RdpCurve) -> Iterator[str]:
    name = f"{account.path} ({account.id})"
    if account.spent != recomputed:
        yield f"{name}: its spent curve is not the sum of its charges."
    if account.held.values.shape != recomputed.values.shape:
        yield f"{name}: its held curve is not over grid {account.grid_version}."
        return
    if account.limit is None or recomputed.is_zero:
        return
    if not account.weights_frozen:
        yield f"{name}: it was charged, but its filter weights are not frozen."
        return
    if account.weights is not None and not account.weights.within(account.limit.delta):
        yield f"{name}: its filter weights sum to more than its delta."
        return
    taken = (recomputed + account.held).values
    if not np.any((taken <= account.thresholds()) & (taken < EXHAUSTED)):
        yield f"{name}: more is spent and held than its limit allows."
