"""Reading what was done with an organisation's budgets, and what was decided."""

from app.ledger.roles import Permission
from app.persistence.repositories import acts
from app.persistence.repositories.acts import KeptAct, Wanted
from app.service.call import Call


def read_acts(call: Call, wanted: Wanted, *, after: int, limit: int) -> list[KeptAct]:
    """Read the organisation's chain of acts.

    Args:
        call: needs AUDIT, in the whole organisation.
        wanted: which of them.
        after: only those behind this position; -1: from the first.
        limit: how many at the most.

    Returns:
        The acts in the order of the chain.
    """
    call.require_everywhere(Permission.AUDIT)
    with call.db.read(call.organisation_id) as tx:
        return acts.page(tx, call.organisation_id, wanted, after=after, limit=limit)
