"""What a limit guarantees in the words of a reader who is no engineer; `guarantees` has the precise texts."""

from datetime import datetime
from typing import Final

from app.accounting.events import NeighboringRelation
from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import Population
from app.ledger.wording import counted
from app.service.audit.limit_standing import Excess, ExcessCause, LimitStanding

DIFFERENCES: Final = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "with or without one {unit}'s records",
    NeighboringRelation.REPLACE_ONE: "with one {unit}'s records or with another's in their place",
    NeighboringRelation.REPLACE_SPECIAL: "with one {unit}'s records or with empty ones in their place",
}
"""What must not be found out, for each neighboring relation."""

_ADDED: Final = (
    "What {account} adds stays within {limit}: whoever knows everything else that was released about these people "
    "cannot tell better than that whether it was computed {difference}. It holds whatever was decided while looking at "
    "earlier results."
)
_TOTAL: Final = (
    "All releases about the people of {account} together stay within {limit}: nobody can tell better than that whether "
    "they were computed {difference}. It holds whatever was decided while looking at earlier results."
)
_NOT_OF_MODEL: Final = (
    "It is no bound on the result alone: a run that started from the results of others, or was set up by them, repeats "
    "what they say. The total counts them, too."
)
_CONDITION: Final = "The condition: everything that was released about these people was charged here."
_PARTS: Final = (
    "A further condition, which a person attested: each {unit} is in at most {parts} of {account}, and which ones does "
    "not depend on results."
)
_CHANGED: Final = "The limit was changed, and this is the largest that was in force; the annex says in which sense."
_EXCEEDED: Final = (
    "More was released under {account} than its limit of {limit} allows, so the limit guarantees nothing about it. "
    "{cause}"
)
_CAUSES: Final = {
    None: "The ledger does not show how.",
    ExcessCause.REPORTED: "Steps were reported after they had happened; the first to exceed a limit on {reported}.",
    ExcessCause.LOWERED: "Everything was allowed when it was released or reserved. The limit was lowered later, on "
    "{lowered}.",
    ExcessCause.REPORTED_AND_LOWERED: "Both happened: steps were reported after they had happened, the first to exceed "
    "a limit on {reported}, and the limit was lowered, last on {lowered}.",
}


def plain_claim(standing: LimitStanding, people: Population) -> list[str]:
    """State what the limit of an account guarantees and on which condition, or why it guarantees nothing."""
    account = standing.account
    name = f"the {account.kind} {account.path}"
    proven = standing.proven
    if proven is None:
        assert standing.excess is not None, "else its limit is proven"
        cause = _cause(standing.excess)
        return [_EXCEEDED.format(account=name, limit=str(standing.limit), cause=cause)]
    difference = DIFFERENCES[people.relation].format(unit=people.privacy_unit)
    outermost = account.kind is AccountKind.POPULATION
    said = [(_TOTAL if outermost else _ADDED).format(account=name, limit=str(proven), difference=difference)]
    if standing.is_changed:
        said.append(_CHANGED)
    said.append(_CONDITION if outermost else _NOT_OF_MODEL)
    most = account.partitions_per_unit
    if most is not None:
        said.append(_PARTS.format(unit=people.privacy_unit, parts=counted(most, "part"), account=name))
    return said


def day_text(moment: datetime) -> str:
    """Write a day as lawyers do: "3 December 2026"."""
    return f"{moment.day} {moment:%B %Y}"


def _cause(excess: Excess) -> str:
    days = {"reported": excess.reported_at, "lowered": excess.lowered_at}
    return _CAUSES[excess.cause].format_map({name: at and day_text(at) for name, at in days.items()})
