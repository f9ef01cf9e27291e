"""Proof of the ledger: every account recomputed from the charges alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.ledger.accounts import Account, zero_curve
from app.ledger.runs import Run
from app.persistence.engine import Database
from app.persistence.repositories import accounts, decisions, runs


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


def verify(db: Database) -> Verification:
    """Recompute every account of every organisation from its charges, and compare the bytes.

    Args:
        db: the ledger's database.

    Returns:
        What was found; nothing is changed.
    """
    problems: list[str] = []
    charges = steps = run_count = 0
    with db.read() as tx:
        kept = {(org, record.account.id): record.account for org, record in accounts.everything(tx)}
        spent = {key: zero_curve(account.grid_version) for key, account in kept.items()}
        for org in sorted({org for org, _ in kept}):
            for run in runs.everything(tx, org):
                run_count += 1
                own = kept[org, run.account_id]
                total, found, taken = _replay(tx, org, own, run, problems)
                charges += found
                steps += taken
                for account in _upwards(kept, org, own):
                    spent[org, account.id] = spent[org, account.id] + total
    for key, account in kept.items():
        problems.extend(_disagreements(account, spent[key]))
    return Verification(len(kept), run_count, charges, steps, tuple(problems))


def _replay(tx: Connection, org: str, own: Account, run: Run, problems: list[str]) -> tuple[RdpCurve, int, int]:
    """A run's curve from its charges alone; gaps and overlaps become problems."""
    total = zero_curve(own.grid_version)
    charges = taken = 0
    current = -1
    for position, first_step, step in decisions.charges(tx, org, run.account_id):
        if position != current and first_step != taken:
            problems.append(f"{own.path} ({own.id}): decision {position} begins at step {first_step}, not at {taken}.")
        current = position
        total = total + own.curve_of(step.event).times(step.count)
        charges += 1
        taken += step.count
    if run.next_step != taken:
        problems.append(
            f"{own.path} ({own.id}): its charges stand for {taken} steps, but its next step is {run.next_step}."
        )
    return total, charges, taken


def _upwards(kept: dict[tuple[str, str], Account], org: str, leaf: Account) -> Iterator[Account]:
    account: Account | None = leaf
    while account is not None:
        yield account
        account = kept.get((org, account.parent_id)) if account.parent_id else None


def _disagreements(account: Account, recomputed: RdpCurve) -> Iterator[str]:
    name = f"{account.path} ({account.id})"
    if account.spent != recomputed:
        yield f"{name}: its spent curve is not the sum of its charges."
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
