"""What accounts can take: the least along their paths, with parts of parallel accounts read where they decide."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.admission.composition import exposed
from app.ledger.scheduling.availability import AccountRoom, Available, available_of, least_above_part, room_of
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import accounts, overview_queries
from app.persistence.repositories.overview_queries import AccountSummary
from app.service.accounts.damaged_rows import read_tolerating_damage
from app.service.accounts.locked_limits import LockedLimit, LockedLimitReader, read_locked_limits, room_within

CACHED_PARTS: Final = 10_000

Marks = tuple[tuple[object, ...], ...]


class AvailabilityReader:
    """Finds what accounts can take now; caches what is left above parts. Thread-safe."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, str, bool], tuple[Marks, Available]] = LruCache(CACHED_PARTS)
        self._locked = LockedLimitReader()

    def read(
        self,
        tx: Connection,
        organisation_id: str,
        summaries: Sequence[AccountSummary],
        rooms: Sequence[AccountRoom],
        now: datetime,
    ) -> tuple[dict[str, Available], dict[str, LockedLimit]]:
        """Find what accounts can take now, and what is locked of the limits of those that unlock theirs, by id.

        `summaries` and `rooms` are about the same accounts, ancestors first; one that is missing limits nothing. Rooms
        do not know what is locked.
        """
        limits = self._locked.read(tx, organisation_id, summaries, now)
        whole = self._least(tx, organisation_id, summaries, rooms, {})
        locked = {account_id: each for account_id, each in limits.items() if each.locked > 0}
        if not locked:
            return whole, limits
        usable = [
            replace(each, epsilon=max(0.0, each.epsilon - locked[each.id].locked)) if each.id in locked else each
            for each in rooms
        ]
        found = self._least(tx, organisation_id, summaries, usable, locked)
        available = {
            account_id: each if each == whole[account_id] else replace(each, when_unlocked=whole[account_id])
            for account_id, each in found.items()
        }
        return available, limits

    def _least(
        self,
        tx: Connection,
        organisation_id: str,
        summaries: Sequence[AccountSummary],
        rooms: Sequence[AccountRoom],
        locked: Mapping[str, LockedLimit],
    ) -> dict[str, Available]:
        """Find the least room along the path of each account, by id."""
        found = available_of(rooms)
        parallel = {each.id for each in rooms if each.parallel}
        # The room of the whole is never more than what is left for a part: it decides only where it is the least.
        doubtful = {
            each.id: each.parent_id
            for each in rooms
            if each.parent_id is not None
            and each.parent_id in parallel
            and each.epsilon > found[each.parent_id].epsilon
        }
        if not doubtful:
            return found
        return available_of(rooms, self._above_parts(tx, organisation_id, summaries, doubtful, locked))

    def _above_parts(
        self,
        tx: Connection,
        organisation_id: str,
        summaries: Sequence[AccountSummary],
        wanted: Mapping[str, str],
        locked: Mapping[str, LockedLimit],
    ) -> dict[str, Available]:
        """Find what is left above parts, by id; `wanted` has the parallel account of each. Damaged ones have none."""
        by_id = {each.id: each for each in summaries}
        siblings: dict[str, list[AccountSummary]] = {}
        paths = {part: _path_of(by_id, part) for part in wanted}
        composed = {at for path in paths.values() for at in path if by_id[at].max_partitions_per_unit is not None}
        for each in overview_queries.list_part_summaries(tx, organisation_id, sorted(composed)):
            siblings.setdefault(str(each.parent_id), []).append(each)
        found: dict[str, Available] = {}
        missing: dict[str, Marks] = {}
        for part, path in paths.items():
            beside = [each for at in path for each in siblings.get(at, ()) if at != part]
            marks = tuple(each.mark for each in (*(by_id[at] for at in path), *beside))
            marks = (*marks, tuple(locked[at].part for at in path if at in locked))
            kept = self._known.get((organisation_id, part, bool(locked)))
            if kept is not None and kept[0] == marks:
                found[part] = kept[1]
            else:
                missing[part] = marks
        if missing:
            needed = {at for part in missing for at in paths[part]}
            needed |= {each.id for at in needed for each in siblings.get(at, ())}
            records, _ = read_tolerating_damage(tx, organisation_id, sorted(needed), lambda record: record)
            for part, marks in missing.items():
                left = _left_above(records, paths[part], siblings, locked)
                if left is not None:
                    found[part] = left
                    self._known.put((organisation_id, part, bool(locked)), (marks, left))
        return found


def _path_of(by_id: Mapping[str, AccountSummary], account_id: str) -> tuple[str, ...]:
    """List the ids of an account and those above it, the root first."""
    path: list[str] = []
    at: str | None = account_id
    while at is not None and at in by_id:
        path.append(at)
        at = by_id[at].parent_id
    return tuple(reversed(path))


def _left_above(
    records: Mapping[str, AccountRecord],
    path: Sequence[str],
    siblings: Mapping[str, Sequence[AccountSummary]],
    locked: Mapping[str, LockedLimit],
) -> Available | None:
    """Find what is left above a part; None if the row of an account that counts is damaged."""
    parts = [each.id for at in path[:-1] for each in siblings.get(at, ())]
    if any(each not in records for each in (*path, *parts)):
        return None
    stopped = [records[at] for at in path[:-1] if records[at].quarantine is not None]
    if stopped:
        return Available(0.0, stopped[-1].account.id, stopped[-1].account.path)
    accounts_of_path, beside = ([records[each].account for each in ids] for ids in (path, parts))
    return least_above_part(accounts_of_path, beside, room_within(locked))


def room_of_record(record: AccountRecord) -> AccountRoom:
    """Get what an account's own limit leaves: nothing in quarantine."""
    account = record.account
    return AccountRoom(
        account.id,
        account.path,
        account.parent_id,
        account.partitions_per_unit is not None,
        0.0 if record.quarantine is not None else room_of(account),
    )


def read_available(
    tx: Connection, organisation_id: str, records: Sequence[AccountRecord], now: datetime
) -> dict[str, Available]:
    """Find what populations and budgets can take now, by id."""
    summaries = overview_queries.list_summaries_along(tx, organisation_id, [each.account.id for each in records])
    read = {each.account.id: each for each in records}
    above, damaged = read_tolerating_damage(
        tx, organisation_id, [each.id for each in summaries if each.id not in read], lambda record: record
    )
    names = overview_queries.paths_of(tx, organisation_id, damaged) if damaged else {}
    rooms = []
    for each in summaries:
        record = read.get(each.id) or above.get(each.id)
        parallel = each.max_partitions_per_unit is not None
        rooms.append(
            AccountRoom(each.id, names[each.id], each.parent_id, parallel, 0.0)
            if record is None
            else room_of_record(record)
        )
    return AvailabilityReader().read(tx, organisation_id, summaries, rooms, now)[0]


def read_available_along(
    tx: Connection, organisation_id: str, path: Sequence[AccountRecord], now: datetime
) -> Available:
    """Find what the last account of a path can take now; `path` has it and all accounts above it."""
    last = path[-1]
    if last.account.kind is not AccountKind.RUN:
        return read_available(tx, organisation_id, [last], now)[last.account.id]
    parallel = [each.account.id for each in path if each.account.partitions_per_unit is not None]
    parts = accounts.children(tx, organisation_id, parallel) if parallel else []
    touched = exposed([each.account for each in path], [each.account for each in parts])
    stopped = {each.account.id for each in path if each.quarantine is not None}
    room = room_within(read_locked_limits(tx, organisation_id, [each.account for each in path], now))
    rooms = [Available(0.0 if each.id in stopped else room(each), each.id, each.path) for each in touched]
    return min(reversed(rooms), key=lambda room: room.epsilon)
