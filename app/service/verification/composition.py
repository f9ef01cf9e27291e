"""Compose the charges under an account, in sequence and over disjoint partitions."""

from dataclasses import dataclass

from app.accounting.curves import RdpCurve
from app.ledger.accounts import Account, zero_curve
from app.ledger.parallel_exposure import held_of, largest
from app.persistence.repositories.raw_rows import Key
from app.service.verification.report import VerificationContext


@dataclass(frozen=True, slots=True)
class Value:
    """Recomputed balance of an account; `composed` if there are disjoint partitions under it.

    Args:
        held: of active reservations; with partitions, meaningful only together with `spent`.
        asked: spent and held without reports, which no decision admitted beforehand.
    """

    spent: RdpCurve
    held: RdpCurve
    asked: RdpCurve
    composed: bool

    def __add__(self, other: "Value") -> "Value":
        """Add two balances."""
        return Value(
            self.spent + other.spent,
            self.held + other.held,
            self.asked + other.asked,
            self.composed or other.composed,
        )

    def is_kept(self, account: Account) -> tuple[bool, bool]:
        """Whether the account's row has these spent and held curves."""
        if self.composed:  # the reserved share of the largest depends on the partition
            return account.spent == self.spent, account.spent + account.held == self.spent + self.held
        return account.spent == self.spent, account.held == self.held


def value_of(audit: VerificationContext, key: Key) -> Value | None:
    """Recompute an account's balance from its charges; None: an event has no sound cost."""
    balance = audit.balances[key]
    account = balance.account
    if account.parts_that_count is not None:
        return _of_parts(audit, key, account.parts_that_count)
    spent = audit.cost(key[0], account, balance.spent)
    held = audit.cost(key[0], account, balance.held)
    asked = audit.cost(key[0], account, balance.spent - balance.reported)
    if spent is None or held is None or asked is None:
        return None
    total: Value | None = Value(spent, held, asked + held, composed=False)
    for part in _topmost(audit, key):
        inner = value_of(audit, part)
        total = None if total is None or inner is None else total + inner
    return total


def current_of(audit: VerificationContext, key: Key) -> tuple[RdpCurve, bool] | None:
    """Compute the admitted spending plus the steps that active reservations may still take.

    Reported and cancelled steps are left out: they may exceed the limit in force.

    Returns:
        The curve, and whether a reservation may take steps; None: an event has no sound cost.
    """
    balance = audit.balances[key]
    account = balance.account
    if account.parts_that_count is not None:
        parts = [current_of(audit, child) for child in audit.children.get(key, ())]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        zero = zero_curve(account.grid_version)
        return largest([zero, *(curve for curve, _ in known)], account.parts_that_count), any(may for _, may in known)
    counts = balance.spent - balance.reported - balance.withdrawn + balance.allowed
    total, may = audit.cost(key[0], account, counts), balance.left > 0
    for part in _topmost(audit, key):
        inner = current_of(audit, part)
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


def _of_parts(audit: VerificationContext, key: Key, most: int) -> Value | None:
    """Sum the largest partitions at each order."""
    zero = zero_curve(audit.balances[key].account.grid_version)
    spent, total, asked = [zero], [zero], [zero]
    for child in audit.children.get(key, ()):
        part = value_of(audit, child)
        if part is None:
            return None
        spent.append(part.spent)
        total.append(part.spent + part.held)
        asked.append(part.asked)
    lost = largest(spent, most)
    return Value(lost, held_of(lost, largest(total, most)), largest(asked, most), composed=True)
