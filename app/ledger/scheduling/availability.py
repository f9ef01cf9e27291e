"""What an account can still take: the least share that its own limit and the limits above it leave.

Each limit counts in shares of its account's capacity (`Account.used`). Of a limit that is unlocked in parts, what is
locked can not be taken now, and is not used either. Under a parallel account, a charge to one part counts only where it
exceeds the other parts, so what its limit leaves differs from part to part.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.admission.composition import exposed
from app.ledger.scheduling.withholding import Withholding


@dataclass(frozen=True, slots=True)
class Available:
    """The share of an account's capacity that can be taken now: of the one whose limit leaves the least.

    Args:
        when_unlocked: the same, were nothing locked; None: nothing that is locked makes a difference.
    """

    share: float
    account_id: str
    account_path: str
    when_unlocked: "Available | None" = None


def room_of(account: Account) -> float:
    """Compute the share that an account's own limit leaves, in [0, 1]; infinite without a limit.

    With an exposure, it is what its limit leaves for a charge from the path's run.
    """
    if account.limit is None:
        return inf
    if account.exposure is None:
        return max(0.0, 1 - max(account.used(), account.used(account.spent + account.held)))
    left = 1.0
    for slope, base in account.exposure.total.items():
        beyond = 1 - account.used(base)
        if slope:
            left = min(left, beyond / slope)
        elif beyond < 0:  # the other parts alone exceed the limit
            return 0.0
    return max(0.0, left)


def unlocked_room_of(account: Account, withholding: Withholding) -> float:
    """Compute the share that the unlocked part of an account's limit leaves: what is locked counts as reserved."""
    if not account.has_filter:  # nothing was charged, and its orders are not chosen
        return room_of(account) * float(withholding.unlocked)
    return room_of(withholding.unlocked_view(account))


def least_above_part(
    path: Sequence[Account], parts: Iterable[Account], room: Callable[[Account], float] = room_of
) -> Available:
    """Find the least room above the last account of a path, a part of a parallel account, for its own charges.

    `path` has all accounts above it, ancestors first; `parts` the children of every parallel account of the path;
    `room` computes what one of them leaves.
    """
    # A part that is split again grows by no more than a charge to one of its own parts: by all of it, at most.
    part = replace(path[-1], partitions_per_unit=None)
    run = replace(part, id="", kind=AccountKind.RUN, parent_id=part.id, limit=None)
    above = exposed([*path[:-1], part, run], parts)[:-2]
    return min((Available(room(each), each.id, each.path) for each in reversed(above)), key=lambda one: one.share)
