"""What accounts leave for further charges, counted in repetitions."""

from collections.abc import Sequence

from app.accounting.curves import RdpCurve
from app.ledger.accounts import Account

UNLIMITED = 2**62
"""What an account without a limit leaves: more than any count."""


def fits(account: Account, *new: RdpCurve) -> bool:
    """Whether an account admits some curves on top of what is spent and held.

    Args:
        account: with its weights, if it needs some.
        *new: what is asked for.

    Returns:
        True if some order has room for all of them, and delta for their own deltas.
    """
    if account.limit is None:
        return True
    own_delta = account.own_delta(*new)
    gate = account.bounds(own_delta)
    return own_delta <= gate.room and bool((account.headroom(gate, *new) >= 0).any())


def _repetitions(account: Account, pending: Sequence[RdpCurve], curve: RdpCurve) -> int:
    """How often an account admits `curve` on top of what is spent, held and pending; below 0: that is too much."""
    if account.limit is None:
        return UNLIMITED
    own_delta = account.own_delta(*pending)
    gate = account.bounds(own_delta)
    if own_delta > gate.room:
        return -1
    most = gate.repetitions(account.headroom(gate, *pending), curve)
    if most <= 0 or not curve.delta:
        return most
    # By their own delta, repetitions narrow the gate of a declared filter for all of them: the largest count is sought.
    fitting, most = 0, min(most, account.delta_left(gate, *pending) // curve.delta)
    while most > fitting:
        middle = (fitting + most + 1) // 2
        fitting, most = (middle, most) if fits(account, *pending, curve.times(middle)) else (fitting, middle - 1)
    return fitting


def min_repetitions(accounts: Sequence[Account], pending: Sequence[RdpCurve], curve: RdpCurve) -> tuple[int, int]:
    """How many repetitions of a curve every account admits.

    Args:
        accounts: with their weights.
        pending: charged before them.
        curve: of one repetition.

    Returns:
        The count, below 0 if the pending charges do not fit; and the place of the account that leaves the fewest.
    """
    counts = [_repetitions(account, pending, curve) for account in accounts]
    least = min(counts)
    return least, counts.index(least)
