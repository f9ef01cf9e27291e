"""State precisely what an account's limit guarantees, in words that are true as written (ADR 0005, 0017, 0020)."""

from collections.abc import Sequence
from typing import Final

from app.accounting.events import NeighboringRelation
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import Population
from app.ledger.filter.limits import Limit
from app.service.audit.limit_standing import LimitStanding

WORLDS: Final = (
    "Compare two worlds. In both, everything outside of {account} was computed from the same data. They differ only in "
    "what the mechanisms charged to {account} saw: {difference}."
)
APART: Final = (
    "Nobody who sees all releases, inside and outside, earlier and later, can tell them apart better than {parameters} "
    "of its limit, whatever trainers chose while looking at any of them. So somebody who already knew what was "
    "released elsewhere before learns at most this much more."
)
NOT_OF_MODEL: Final = (
    "It is no bound on the model alone: a run that started from other runs' results, or was set up by them, repeats "
    "what they say."
)
EVERYTHING: Final = (
    "Whatever was chosen from any outputs, all that was released under {account} is {notion} "
    "for its people at its limit, jointly with everything released about other people."
)
ABOUT: Final = (
    "This is about all that was released under {account}, jointly with everything released about other people."
)
CONDITION: Final = "Condition: everything released about these people was charged here."
CHANGED: Final = (
    "The limit was changed. For every limit that was named beforehand, the process that stops as soon as a limit in "
    "force exceeds it is differentially private at it{sense}. No limit in force exceeded {limit}, and these releases "
    "are a transcript of that process."
)
EXCEEDED: Final = (
    "More was released than the limit allows, so at the limit nothing is proven. For every limit of this delta that "
    "was named beforehand, and every event: the probability that the event happens and the filter at that limit was "
    "not exceeded is at most e^epsilon times the probability of the same {other}, plus delta. Here the filter was not "
    "exceeded at the epsilon limit_needed."
)
EXCEEDED_EXACTLY: Final = (
    "More was released than the limit allows, so at the limit nothing is proven. For every limit in this unit that was "
    "named beforehand, the process that stops before the sum of losses exceeds it is differentially private at "
    "it{sense}. Here the sum did not exceed limit_needed."
)
PARTS: Final = (
    "Provided that a {unit} is in at most {most} of the parts of {account}, and that its parts depend on that {unit} "
    "alone, not on outputs."
)
TOTAL: Final = "All releases about these people together are within the limit of {account}."
TOTAL_ELSEWHERE: Final = (
    "All releases about these people together are charged to {account}, whose limit was changed or exceeded: its own "
    "statement says what holds."
)
_DIFFERENCES: Final = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "with or without one {unit}",
    NeighboringRelation.REPLACE_ONE: "with one {unit} or another in its place",
    NeighboringRelation.REPLACE_SPECIAL: "with one {unit} or an empty one in its place",
}


def guarantee(own: LimitStanding, totals: Sequence[LimitStanding], people: Population) -> str:
    """State what the limit of an account guarantees.

    Only a limit that contains every release on its people bounds what is released under it: below, a release may
    repeat what another account has released, at no cost (`test_sibling_counterexample`).

    Args:
        own: the account by its limit.
        totals: the populations above the account; none if it is one itself.
        people: whose data it is about.
    """
    account, outermost = own.account, own.account.kind is AccountKind.POPULATION
    name, most = _name(account), account.partitions_per_unit
    changed = _changed(own, outermost=outermost)
    parts = [] if most is None else [PARTS.format(unit=people.privacy_unit, most=most, account=name)]
    if outermost:
        claims = (
            [EVERYTHING.format(account=name, notion=own.limit.notion)]
            if changed is None
            else [ABOUT.format(account=name), changed]
        )
        return " ".join([*claims, CONDITION, *parts])
    difference = _DIFFERENCES[people.relation].format(unit=people.privacy_unit)
    worlds = WORLDS.format(account=name, difference=difference)
    return " ".join(
        [worlds, changed or APART.format(parameters=own.limit.parameters), *parts, NOT_OF_MODEL, *map(_total, totals)]
    )


def _changed(own: LimitStanding, *, outermost: bool) -> str | None:
    """State what holds of a limit that was changed or exceeded; None: it was neither."""
    proven = own.proven
    if proven is None:
        return _exceeded(own.limit, outermost=outermost)
    return CHANGED.format(sense=_sense(outermost=outermost), limit=proven) if own.is_changed else None


def _exceeded(limit: Limit, *, outermost: bool) -> str:
    if limit.is_exact:
        return EXCEEDED_EXACTLY.format(sense=_sense(outermost=outermost))
    return EXCEEDED.format(other="on neighboring data" if outermost else "in the other world")


def _sense(*, outermost: bool) -> str:
    return "" if outermost else " in this sense"


def _total(population: LimitStanding) -> str:
    fixed = not population.is_changed and population.excess is None
    return (TOTAL if fixed else TOTAL_ELSEWHERE).format(account=_name(population.account))


def _name(account: Account) -> str:
    return f"{account.kind} {account.path}"
