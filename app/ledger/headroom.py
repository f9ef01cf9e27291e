"""Remaining headroom of accounts, counted in repetitions."""

from collections.abc import Sequence

from app.accounting.curves import RdpCurve
from app.ledger.accounts import Account

UNLIMITED = 2**62
"""Headroom of an account without a limit: more than any count."""


def fits(account: Account, *new: RdpCurve) -> bool:
    """Check whether an account, with weights if it needs them, admits further curves."""
    if account.limit is None:
        return True
    own_delta = account.own_delta(*new)
    gate = account.bounds(own_delta)
    return own_delta <= gate.room and bool((account.headroom(gate, *new) >= 0).any())


def _repetitions(account: Account, pending: Sequence[RdpCurve], curve: RdpCurve) -> int:
    """Count the repetitions of `curve` that fit after `pending`; negative if `pending` does not."""
    if account.limit is None:
        return UNLIMITED
    own_delta = account.own_delta(*pending)
    gate = account.bounds(own_delta)
    if own_delta > gate.room:
        return -1
    most = gate.repetitions(account.headroom(gate, *pending), curve)
    if most <= 0 or not curve.delta:
        return most
    # Own deltas of repetitions lower a declared filter's bounds for all of them: bisect for the largest count.
    fitting, most = 0, min(most, account.delta_left(gate, *pending) // curve.delta)
    while most > fitting:
        middle = (fitting + most + 1) // 2
        fitting, most = (middle, most) if fits(account, *pending, curve.times(middle)) else (fitting, middle - 1)
    return fitting


def min_repetitions(accounts: Sequence[Account], pending: Sequence[RdpCurve], curve: RdpCurve) -> tuple[int, int]:
    """Count the repetitions of a curve that every account admits after `pending` charges.

    The count is negative if these do not fit; the index is that of the binding account.
    """
    counts = [_repetitions(account, pending, curve) for account in accounts]
    least = min(counts)
    return least, counts.index(least)
