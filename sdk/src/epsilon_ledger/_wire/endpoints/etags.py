"""Entity tags of what was read, for If-Match."""

from epsilon_ledger._wire.allocation_models import AccountAllocation
from epsilon_ledger._wire.governance_models import AccountLimit, AccountPolicy
from epsilon_ledger._wire.models import AccountBlockSchedule


def tag_of(seen: AccountLimit | AccountPolicy | AccountBlockSchedule | AccountAllocation | str | None) -> str:
    """Get the entity tag of what was read; for None, the one that every version has.

    Raises:
        TypeError: it is something else.
        ValueError: it has no entity tag.
    """
    if seen is None:
        return "*"
    if not isinstance(seen, str | AccountLimit | AccountPolicy | AccountBlockSchedule | AccountAllocation):
        raise TypeError(f"if_match must be what was read, or its etag, not {seen!r}.")
    tag = seen if isinstance(seen, str) else seen.etag
    if not tag:
        raise ValueError("if_match has no etag: read the limit, policy, schedule or allocation again.")
    return tag
