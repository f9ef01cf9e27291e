"""What accounts can take: the least along their paths, with parts of parallel accounts read where they decide."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.admission.composition import exposed
from app.ledger.scheduling.account_status import AccountStatus, available_of
from app.ledger.scheduling.availability import Available, least_above_part, room_of
from app.ledger.scheduling.withholding import LockedLimit
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import accounts, overview_queries
from app.service.accounts.damaged_rows import read_tolerating_damage
from app.service.accounts.locked_limits import LockedLimitReader, read_locked_limits, room_within

CACHED_PARTS: Final = 10_000

Marks = tuple[tuple[object, ...], ...]


class AvailabilityReader:
    """Finds what accounts can take now; caches what is left above parts. Thread-safe."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, str, bool], tuple[Marks, Available]] = LruCache(CACHED_PARTS)
        self._locked = LockedLimitReader()

    def with_available(
        self, tx: Connection, organisation_id: str, statuses: Sequence[AccountStatus], now: datetime
    ) -> list[AccountStatus]:
        """Add to accounts what they can take now, and what is locked of those limits that unlock.

        `statuses` has ancestors first; an account that is missing limits nothing.
        """
        limits = self._locked.read(tx, organisation_id, statuses, now)
        found = self._read(tx, organisation_id, statuses, limits)
        return [
            each
            if (each.available, each.locked) == (found[each.id], limits.get(each.id))
            else each._replace(available=found[each.id], locked=limits.get(each.id))
            for each in statuses
        ]

    def _read(
        self,
        tx: Connection,
        organisation_id: str,
        statuses: Sequence[AccountStatus],
        limits: Mapping[str, LockedLimit],
    ) -> dict[str, Available]:
        """Find what accounts can take now, by id; what remains of their limits does not know what is locked."""
        whole = self._least(tx, organisation_id, statuses, {})
        locked = {account_id: each for account_id, each in limits.items() if each.locked > 0}
        if not locked:
            return whole
        unlocked = [
            each._replace(remaining=max(0.0, each.usable - locked[each.id].locked)) if each.id in locked else each
            for each in statuses
        ]
        found = self._least(tx, organisation_id, unlocked, locked)
        return {
            account_id: each if each == whole[account_id] else replace(each, when_unlocked=whole[account_id])
            for account_id, each in found.items()
        }

    def _least(
        self,
        tx: Connection,
        organisation_id: str,
        statuses: Sequence[AccountStatus],
        locked: Mapping[str, LockedLimit],
    ) -> dict[str, Available]:
        """Find the least room along the path of each account, by id."""
        found = available_of(statuses)
        parallel = {each.id for each in statuses if each.parallel}
        # The room of the whole is never more than what is left for a part: it decides only where it is the least.
        doubtful = [
            each.id
            for each in statuses
            if each.parent_id is not None and each.parent_id in parallel and each.usable > found[each.parent_id].share
        ]
        if not doubtful:
            return found
        return available_of(statuses, self._above_parts(tx, organisation_id, statuses, doubtful, locked))

    def _above_parts(
        self,
        tx: Connection,
        organisation_id: str,
        statuses: Sequence[AccountStatus],
        wanted: Collection[str],
        locked: Mapping[str, LockedLimit],
    ) -> dict[str, Available]:
        """Find what is left above parts, by id. Damaged ones have none."""
        by_id = {each.id: each for each in statuses}
        siblings: dict[str, list[AccountStatus]] = {}
        paths = {part: _path_of(by_id, part) for part in wanted}
        composed = {at for path in paths.values() for at in path if by_id[at].parallel}
        for each in overview_queries.list_part_statuses(tx, organisation_id, sorted(composed)):
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


def _path_of(by_id: Mapping[str, AccountStatus], account_id: str) -> tuple[str, ...]:
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
    siblings: Mapping[str, Sequence[AccountStatus]],
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


def read_available(
    tx: Connection, organisation_id: str, records: Sequence[AccountRecord], now: datetime
) -> dict[str, Available]:
    """Find what populations and budgets can take now, by id."""
    statuses = overview_queries.list_statuses_along(tx, organisation_id, [each.account.id for each in records])
    read = {each.account.id: each for each in records}
    others = [each.id for each in statuses if each.id not in read]
    above, _ = read_tolerating_damage(tx, organisation_id, others, lambda record: record)
    read |= above
    known = [each._replace(remaining=room_of(read[each.id].account)) if each.id in read else each for each in statuses]
    found = AvailabilityReader().with_available(tx, organisation_id, known, now)
    return {each.id: each.available for each in found if each.available is not None}


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
    return min(reversed(rooms), key=lambda room: room.share)
