"""State what an account's limit guarantees, in words that are true as they are written (ADR 0005, 0017, 0020)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import Connection

from app.accounting.events import NeighboringRelation
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.filter.filters import Limit
from app.ledger.wording import format_exact
from app.persistence.repositories.limit_changes import list_limit_changes

WORLDS: Final = (
    "Compare two worlds. In both, everything outside of {account} was computed from the same data. They differ only in "
    "what the mechanisms charged to {account} saw: {difference}."
)
APART: Final = (
    "Nobody who sees all releases, inside and outside, earlier and later, can tell them apart better than (epsilon, "
    "delta) of its limit, whatever trainers chose while looking at any of them. So somebody who already knew what was "
    "released elsewhere before learns at most this much more."
)
NOT_OF_MODEL: Final = (
    "It is no bound on the model alone: a run that started from other runs' results, or was set up by them, repeats "
    "what they say."
)
EVERYTHING: Final = (
    "Whatever was chosen from any outputs, all that was released under {account} is (epsilon, delta)-differentially "
    "private for its people at its limit, jointly with everything released about other people."
)
ABOUT: Final = (
    "This is about all that was released under {account}, jointly with everything released about other people."
)
CONDITION: Final = "Condition: everything released about these people was charged here."
CHANGED: Final = (
    "The limit was changed. For every limit that was named beforehand, the process that stops as soon as a limit in "
    "force exceeds it is differentially private at it{sense}. No limit in force exceeded epsilon {epsilon} at delta "
    "{delta}, and these releases are a transcript of that process."
)
EXCEEDED: Final = (
    "More was released than the limit allows, so at the limit nothing is proven. For every limit of this delta that "
    "was named beforehand, and every event: the probability that the event happens and the filter at that limit was "
    "not exceeded is at most e^epsilon times the probability of the same {other}, plus delta. Here the filter was not "
    "exceeded at epsilon_by_filter."
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


def guarantee(tx: Connection, organisation_id: str, governing: Account, path: Sequence[AccountRecord]) -> str:
    """State what the limit of an account guarantees.

    Only a limit that contains every release on its people bounds what is released under it: below, a release may
    repeat what another account has released, at no cost (`test_sibling_counterexample`).

    Args:
        tx: to read the changes of limits.
        organisation_id: of the account.
        governing: the account.
        path: the accounts above, with their populations.
    """
    populations = [record for record in path if record.account.kind is AccountKind.POPULATION]
    people = next(each.population for each in populations if each.account.id == governing.population_id)
    assert people is not None, "it is a population"
    name, most = _name(governing), governing.partitions_per_unit
    outermost = governing.kind is AccountKind.POPULATION
    changed = _changed(tx, organisation_id, governing, outermost=outermost)
    parts = [] if most is None else [PARTS.format(unit=people.privacy_unit, most=most, account=name)]
    if outermost:
        claims = [EVERYTHING.format(account=name)] if changed is None else [ABOUT.format(account=name), changed]
        return " ".join([*claims, CONDITION, *parts])
    difference = _DIFFERENCES[people.relation].format(unit=people.privacy_unit)
    totals = [_total(each.account) for each in populations]
    return " ".join(
        [WORLDS.format(account=name, difference=difference), changed or APART, *parts, NOT_OF_MODEL, *totals]
    )


def _changed(tx: Connection, organisation_id: str, account: Account, *, outermost: bool) -> str | None:
    """State what holds of a limit that was changed or exceeded; None: it was neither."""
    if is_exceeded(account):
        return EXCEEDED.format(other="on neighboring data" if outermost else "in the other world")
    if not account.limit_revision:
        return None
    sense = "" if outermost else " in this sense"
    largest = _largest_limit(tx, organisation_id, account)
    return CHANGED.format(sense=sense, epsilon=format_exact(largest.epsilon), delta=format_exact(largest.delta))


def is_exceeded(account: Account) -> bool:
    """Whether more was released under an account than its limit allows."""
    released = replace(account, held=zero_curve(account.grid_version))
    return not released.spent.is_zero and not released.fits()


def _largest_limit(tx: Connection, organisation_id: str, account: Account) -> Limit:
    """Find the smallest limit that is at least each that was in force."""
    assert account.limit is not None, "it governs by its limit"
    limits = [account.limit, *(each.before for each in list_limit_changes(tx, organisation_id, account))]
    return Limit(max(each.epsilon for each in limits), max(each.delta for each in limits))


def _total(population: Account) -> str:
    fixed = not population.limit_revision and not is_exceeded(population)
    return (TOTAL if fixed else TOTAL_ELSEWHERE).format(account=_name(population))


def _name(account: Account) -> str:
    return f"{account.kind} {account.path}"
