"""What an account has lost by all charges beneath it: those that are added up, and those of disjoint parts."""

from dataclasses import dataclass

from app.accounting.curves import RdpCurve
from app.ledger.accounts import Account, zero_curve
from app.ledger.parallel_exposure import held_of, largest
from app.persistence.repositories.raw_rows import Key
from app.service.verification.report import VerificationContext


@dataclass(frozen=True, slots=True)
class Value:
    """What the rows beneath an account add up to.

    Args:
        spent: by every charge.
        held: by active reservations; where parts are composed, only with `spent` does it mean something.
        asked: spent and held together, without what was reported, of which nobody was asked beforehand.
        composed: whether disjoint parts lie beneath the account.
    """

    spent: RdpCurve
    held: RdpCurve
    asked: RdpCurve
    composed: bool

    def __add__(self, other: "Value") -> "Value":
        """Both of them together."""
        return Value(
            self.spent + other.spent,
            self.held + other.held,
            self.asked + other.asked,
            self.composed or other.composed,
        )

    def is_kept(self, account: Account) -> tuple[bool, bool]:
        """Whether an account has spent this, and whether it holds this besides."""
        if self.composed:  # how much of a largest one is held depends on which part it is
            return account.spent == self.spent, account.spent + account.held == self.spent + self.held
        return account.spent == self.spent, account.held == self.held


def value_of(audit: VerificationContext, key: Key) -> Value | None:
    """What the rows beneath an account add up to.

    Args:
        audit: has replayed every run that charges the account.
        key: of the account.

    Returns:
        The value; None if an event without a sound price was charged or is held.
    """
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
    """What was let through under an account, and may still be taken by active plans.

    Left out are steps that happened unasked, and withdrawn ones: they may lie over the limit that is in force.

    Args:
        audit: has replayed every run that charges the account.
        key: of the account.

    Returns:
        The curve, and whether a plan may take anything; None if an event without a sound price is part of it.
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
    """The topmost parallel accounts beneath an account that is not one."""
    found: list[Key] = []
    for child in audit.children.get(key, ()):
        parallel = audit.balances[child].account.partitions_per_unit is not None
        found.extend([child] if parallel else _topmost(audit, child))
    return found


def _of_parts(audit: VerificationContext, key: Key, most: int) -> Value | None:
    """What the parts that have lost most add up to, order by order."""
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
