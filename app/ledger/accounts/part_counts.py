"""Charges of an account that is composed of disjoint parts, or has such accounts below: the counts that may matter.

A unit's data lie in few parts. Which of them lost most is not clear from counts of different events. So a part counts
unless another one has all its charges, and the largest epsilon of those is taken.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.ledger.accounts.account_records import MOST_KINDS, Counts

MOST_ALTERNATIVES: Final = 32
"""Maximum alternatives; of more, the Rényi curve alone decides."""


@dataclass(frozen=True, slots=True)
class CountedPart:
    """An account below another, and its counts.

    Args:
        parents: the account above, of a run those that it charges.
        counts: None: they are not counted, and follow from the accounts below.
        parts_that_count: of a parallel account, the number of its parts whose losses add up for one unit.
        is_run: whether nothing is below.
    """

    id: str
    parents: tuple[str, ...]
    counts: Counts | None
    parts_that_count: int | None
    is_run: bool


def counts_that_matter(account_id: str, below: Iterable[CountedPart]) -> Sequence[Counts] | None:
    """List the counts of which one may have the largest epsilon; None: there are too many, or they are not known.

    `below` has the account and all under it.
    """
    found = {each.id: each for each in below}
    children: dict[str, list[CountedPart]] = {}
    for each in found.values():
        for parent in each.parents:
            children.setdefault(parent, []).append(each)
    return _alternatives(found[account_id], children)


def _alternatives(account: CountedPart, children: Mapping[str, Sequence[CountedPart]]) -> Sequence[Counts] | None:
    if account.counts is not None or account.is_run:
        return None if account.counts is None else [account.counts]
    parts = [_alternatives(each, children) for each in children.get(account.id, ())]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    if account.parts_that_count is None:
        return _sums(known)
    if account.parts_that_count == 1:
        return largest_counts([{}, *(counts for each in known for counts in each)])
    return largest_counts([most_of_each(known, account.parts_that_count)])


def _sums(parts: Sequence[Sequence[Counts]]) -> Sequence[Counts] | None:
    """List what parts may have lost together, where all of them count."""
    found: Sequence[Counts] | None = [{}]
    for each in parts:
        if found is not None:
            found = largest_counts([_sum(one, other) for one in found for other in each])
    return found


def most_of_each(parts: Sequence[Sequence[Counts]], number: int) -> Counts:
    """Sum the largest counts of each event over a number of parts, which is no less than any of their sums."""
    largest: dict[str, list[int]] = {}
    for alternatives in parts:
        most: dict[str, int] = {}
        for counts in alternatives:
            for event, count in counts.items():
                most[event] = max(most.get(event, 0), count)
        for event, count in most.items():
            largest.setdefault(event, []).append(count)
    return {event: sum(sorted(counts, reverse=True)[:number]) for event, counts in largest.items()}


def _sum(one: Counts, other: Counts) -> Counts:
    return {event: one.get(event, 0) + other.get(event, 0) for event in {**one, **other}}


def largest_counts(found: Sequence[Counts]) -> Sequence[Counts] | None:
    """Leave those that no other one has all the charges of; None: there are still too many, or of too many events."""
    left: list[Counts] = []
    for counts in sorted(found, key=lambda each: sum(each.values()), reverse=True):
        if not any(_has_all(other, counts) for other in left):
            left.append(counts)
        if len(left) > MOST_ALTERNATIVES or len(counts) > MOST_KINDS:
            return None
    return left


def _has_all(one: Counts, other: Counts) -> bool:
    return all(one.get(event, 0) >= count for event, count in other.items())
