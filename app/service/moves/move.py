"""Move an organisation from one placement to another while the others go on.

The organisation is stopped, copied, and verified on both sides. It goes on in its new place, and its old rows are
deleted. Each database has its part of the move in the organisation's row (`MoveState`), one step after the other:

    source:  none    leaving  leaving   left      left  no row
    target:  no row  no row   arriving  arriving  none  none

So at most one of them decides at any moment, also if the command is killed. The same command goes on where it was, and
before `left` another one cancels. Each writes a token of its own into both rows first, and every later transaction
requires that: of two commands the earlier one stops. All transactions are small, so that others do not wait.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import InvalidInputError, LedgerError, NotFoundError
from app.ledger.moves import Move, MoveState
from app.persistence import citus
from app.persistence.database import ALL_TENANTS, NO_TENANT
from app.persistence.repositories import moves
from app.persistence.repositories.organisations import organisation_name
from app.service.ids import new_id
from app.service.moves import mover as steps
from app.service.moves.mover import Mover, Progress
from app.service.placements import Placement, Placements

SETTLE_SECONDS: Final = 10.0
"""Time until the old rows are deleted: requests on their way there get 503, which is repeated, and never 404."""


@dataclass(frozen=True, slots=True)
class MoveResult:
    """A finished move.

    Args:
        organisation_id: of the organisation.
        source: the placement that it has left.
        target: the placement that it is on now.
        rows: that were copied, by table; empty if an earlier command has copied them.
        stopped_seconds: for so long nothing was charged or changed, since this command began.
    """

    organisation_id: str
    source: str
    target: str
    rows: Mapping[str, int]
    stopped_seconds: float


def move_organisation(placements: Placements, organisation: str, to: str, progress: Progress) -> MoveResult:
    """Move an organisation, given by its id or name, to a placement, or go on with such a move.

    If it fails before the copy is verified, the organisation goes on where it was.

    Raises:
        NotFoundError: there is no such organisation or placement.
        InvalidInputError: it is there already, is being moved elsewhere, or its name is taken there.
        LedgerUnavailableError: a placement does not answer, another command has taken the move over, or the copies
            differ or are not sound.
    """
    target = placements.named(to)
    owner, found = _find(placements, organisation)
    source = _source(placements, found, target)
    _require_movable(source, target)
    mover = Mover(owner, source, target, new_id("mov", source.database.clock.now()), progress)
    departure, arrival = found[source.name], found.get(to)
    rows: Mapping[str, int] = {}
    if departure is None or departure.state is MoveState.LEAVING:
        _require_free_name(mover)
        mover.put(source.database, departure, mover.leaving)
        try:
            rows = steps.copy(mover, arrival)
        except BaseException:
            with suppress(LedgerError, SQLAlchemyError):
                steps.go_back(mover)
                progress("The move has failed. The organisation goes on where it was.")
            raise
        mover.put(source.database, mover.leaving, mover.left)
        steps.arrive(mover)
    else:
        mover.put(source.database, departure, mover.left)
        if to not in found:
            raise InvalidInputError(
                f"The organisation has left {source.name} for {to}, which does not have it. Was {to} restored? Restore "
                "it to a moment after the move."
            )
        if arrival is not None:
            mover.put(target.database, arrival, mover.arriving)
            steps.arrive(mover)
    stopped = time.monotonic() - mover.began_at
    progress(f"It goes on at {to} after {stopped:.1f} s. Its old rows are being deleted.")
    time.sleep(SETTLE_SECONDS)
    mover.delete(source.database, mover.left)
    return MoveResult(owner, source.name, to, rows, stopped)


def cancel_move(placements: Placements, organisation: str, progress: Progress) -> str:
    """Cancel a move before its copy is verified, and delete the copy; return the organisation's id.

    Raises:
        NotFoundError: there is no such organisation.
        InvalidInputError: it is not being moved, or the copy is the organisation already.
    """
    owner, found = _find(placements, organisation)
    for name, move in found.items():
        if move is not None and move.state is MoveState.LEFT:
            raise InvalidInputError(
                f"The copy on {move.placement} is verified, and is the organisation now. Finish the move by "
                f"`epsilon-ledger org move {organisation} --to {move.placement}`."
            )
        if move is not None and move.state is MoveState.LEAVING:
            source, target = placements.named(name), placements.named(move.placement)
            mover = Mover(owner, source, target, new_id("mov", source.database.clock.now()), progress)
            mover.put(source.database, move, mover.leaving)
            steps.go_back(mover)
            return owner
    raise InvalidInputError(f"The organisation {organisation!r} is not being moved.")


def _require_movable(*placements: Placement) -> None:
    """Require that no placement is distributed by Citus, which has the keys of organisations apart from their state."""
    for placement in placements:
        with placement.database.read(NO_TENANT) as tx:
            distributed = placement.database.dialect == "postgresql" and citus.is_distributed(tx)
        if distributed:
            raise InvalidInputError(
                f"The placement {placement.name!r} is distributed by Citus, and organisations move neither to nor from "
                "one. Copy a whole ledger to it by `epsilon-ledger copy`."
            )


def _find(placements: Placements, organisation: str) -> tuple[str, dict[str, Move | None]]:
    """Find an organisation's id, and the parts of the placements that have a row of it, by their names."""
    found: dict[str, Move | None] = {}
    ids: set[str] = set()
    for placement in placements:
        with placements.naming(placement) as db, db.read(ALL_TENANTS) as tx:
            here = moves.find(tx, organisation)
        if here is not None:
            ids.add(here[0])
            found[placement.name] = here[1]
    if not ids:
        raise NotFoundError(f"There is no organisation {organisation!r}; make it with `epsilon-ledger org create`.")
    if len(ids) > 1:
        raise InvalidInputError(
            f"Organisations named {organisation!r} are on the placements {', '.join(found)}; give the id."
        )
    return ids.pop(), found


def _source(placements: Placements, found: Mapping[str, Move | None], target: Placement) -> Placement:
    """Find the placement that the organisation leaves, or has left, for the target."""
    here = [name for name, move in found.items() if move is None or move.state is not MoveState.ARRIVING]
    others = [name for name in here if name != target.name]
    if len(here) > 1:
        placements.require_distinct()
    if not here:
        raise InvalidInputError(
            f"{' and '.join(found)} has an incomplete copy, and no placement has the organisation itself. Was a "
            "database restored? Restore it to a moment before or after the move."
        )
    name = others[0] if others else target.name
    move = found[name]
    if move is not None and move.placement != target.name:
        raise InvalidInputError(f"The organisation is being moved to {move.placement}; finish or cancel that first.")
    if not others:
        raise InvalidInputError(f"The organisation is on the placement {target.name} already.")
    return placements.named(name)


def _require_free_name(mover: Mover) -> None:
    """Require that the target has no other organisation of this name, as it may if two ledgers were joined."""
    with mover.source.database.read(ALL_TENANTS) as tx:
        name = organisation_name(tx, mover.owner)
    with mover.target.database.read(ALL_TENANTS) as tx:
        there = moves.find(tx, name)
    if there is not None and there[0] != mover.owner:
        raise InvalidInputError(f"The placement {mover.target.name} has another organisation named {name!r}.")
