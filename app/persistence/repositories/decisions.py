"""Decisions on requests for steps, admitted and refused."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    cast,
    func,
    or_,
    select,
)

from app.ledger.audit import Actor
from app.ledger.filter.limits import Limit, Unit
from app.ledger.pages import Page, PageRequest
from app.ledger.runs.decisions import (
    Decision,
    DecisionCursor,
    DecisionEntry,
    DecisionFilter,
    DecisionOutcome,
    DecisionWithPath,
    Reading,
)
from app.ledger.step_events import StepEvent
from app.persistence.bulk import BulkStatement
from app.persistence.repositories import decision_lists
from app.persistence.repositories.decision_items import COLUMNS, group_items, read_items
from app.persistence.repositories.decision_lists import PROBE, bisected
from app.persistence.repositories.dp_events import read_event
from app.persistence.repositories.expressions import ADVANCED, join_on, owned_by
from app.persistence.repositories.keysets import cut_page
from app.persistence.tables import (
    account_metadata,
    accounts,
    decision_events,
    decision_ranges,
    decisions,
    dp_events,
    runs,
)

EVENTS_ROOM = 4 << 20
"""Bytes of events read at once; more would take seconds and hundreds of megabytes."""

EVENT_BYTES: Final = 400
"""Bytes counted per event besides its description: 4 MiB then hold at most ten thousand events, which take a tenth of
a second to read and write."""

# Fields of a decision with a column of the same name.
_PLAIN: Final = (
    *("run_id", "position", "attempt", "first_step", "step_count", "requested_count", "steps_remaining"),
    *("binding_account_id", "refusal_details", "ended_plans", "warnings"),
    *("request_fingerprint", "idempotency_key"),
    *("reservation_id", "population_version", "created_at", "entry_hash"),
)
_DECISIONS = select(decisions, accounts.c.path.label("binding_account_path")).join(
    accounts, join_on(accounts, decisions, id="binding_account_id")
)

# Hot-path statements are built once: building one costs as much as executing it.
_BY_KEYS = _DECISIONS.where(
    decisions.c.organisation_id == bindparam("of_organisation"),
    decisions.c.idempotency_key.in_(bindparam("of_keys", expanding=True)),
)


def _admitted() -> Select[Any]:
    """Select the decision that admitted a step, by bisection of the positions of its run.

    Attempts and first steps do not decrease with the position, and after an admitted decision one of them is larger: it
    is the last one up to this step. The first probe is the run's last decision, of which most steps are repeated.
    """
    run: dict[str, BindParameter[str]] = {
        "organisation_id": bindparam("of_organisation"),
        "run_id": bindparam("of_run"),
    }
    count = runs.c.decision_count
    first = select(cast(0, BigInteger).label("low"), count.label("high"), (count - 1).label("probed")).where(
        runs.c.organisation_id == run["organisation_id"], runs.c.account_id == run["run_id"]
    )
    # The next position is computed here: PostgreSQL's row-level security allows no arithmetic in a search of an index.
    search = first.cte("search", recursive=True)
    attempt: BindParameter[int] = bindparam("of_attempt")
    step: BindParameter[int] = bindparam("of_first_step")
    is_passed = or_(PROBE.c.attempt < attempt, and_(PROBE.c.attempt == attempt, PROBE.c.first_step <= step))
    here = and_(*[PROBE.c[name] == value for name, value in run.items()], PROBE.c.position == search.c.probed)
    following = select(*bisected(search, is_passed)).join_from(search, PROBE, here)
    found = search.union_all(following.where(search.c.low < search.c.high))
    last = select((found.c.low - 1).label("position")).where(found.c.low == found.c.high).cte("last")
    these = [decisions.c[name] == value for name, value in run.items()]
    return _DECISIONS.where(
        *these,
        decisions.c.position == last.c.position,
        decisions.c.attempt == attempt,
        decisions.c.first_step == step,
        ADVANCED,
    )


_ADMITTED: Final = _admitted()
_RUN, _BINDING = accounts.alias("run"), accounts.alias("binding")
_NUMBER = account_metadata.c.number.label("run_number")
_ITEMS: Final = DecisionEntry._fields.index("items")
"""The row has the first item in this place; `decision_events` has the others."""

_ADDED = BulkStatement(
    decisions,
    [
        *DecisionEntry._fields[:_ITEMS],
        *("event_fingerprint", "event_count"),
        *DecisionEntry._fields[_ITEMS + 1 :],
        "entry_hash",
    ],
)
_ADDED_RANGES = BulkStatement(decision_ranges, ["organisation_id", "run_id", "first_position", "actor"])
_ADDED_ITEMS = BulkStatement(
    decision_events, ["organisation_id", "run_id", "position", "item", "event_fingerprint", "count", "repeats"]
)


def add_all(
    tx: Connection,
    entries: Sequence[tuple[DecisionEntry, bytes]],
    new_ranges: Sequence[tuple[str, str, int, str]] = (),
) -> None:
    """Add decisions, given as entries with their hashes; the events must exist.

    `new_ranges` has the organisation, run, position and actor of those that begin ranges (`decision_lists`).
    """
    _ADDED.execute(tx, [(*entry[:_ITEMS], *entry.items[0], *entry[_ITEMS + 1 :], link) for entry, link in entries])
    further = [
        (entry.organisation_id, entry.run_id, entry.position, *row)
        for entry, _ in entries
        if len(entry.items) > 1
        for row in group_items(entry.items)
    ]
    if further:
        _ADDED_ITEMS.execute(tx, further)
    if new_ranges:
        _ADDED_RANGES.execute(tx, new_ranges)


def find_by_keys(tx: Connection, organisation_id: str, idempotency_keys: Sequence[str]) -> list[Decision]:
    """Find decisions by idempotency keys, without their steps: a repeated request has them."""
    rows = tx.execute(_BY_KEYS, {"of_organisation": organisation_id, "of_keys": idempotency_keys})
    return [_decision(row, ()) for row in rows]


def find_by_key(tx: Connection, organisation_id: str, idempotency_key: str) -> Decision | None:
    """Find a decision by its idempotency key, without its steps."""
    return next(iter(find_by_keys(tx, organisation_id, [idempotency_key])), None)


def find_admitted(tx: Connection, organisation_id: str, run_id: str, attempt: int, first_step: int) -> Decision | None:
    """Find the decision that admitted steps from a run, attempt and first step on, without these steps."""
    asked = {"of_organisation": organisation_id, "of_run": run_id, "of_attempt": attempt, "of_first_step": first_step}
    row = tx.execute(_ADMITTED, asked).one_or_none()
    return None if row is None else _decision(row, ())


def at_positions(tx: Connection, organisation_id: str, run_id: str, positions: Sequence[int]) -> list[Decision]:
    """List a run's decisions at some positions; their steps are truncated to `EVENTS_ROOM`."""
    here = owned_by(decisions, organisation_id, run_id=run_id)
    found = _DECISIONS.where(here, decisions.c.position.in_(positions))
    rows = tx.execute(found.order_by(decisions.c.position)).all()
    events = _first_events(tx, organisation_id, run_id, rows)
    return [_decision(row, events[row.position]) for row in rows]


def page(tx: Connection, organisation_id: str, wanted: DecisionFilter, request: PageRequest) -> Page[DecisionWithPath]:
    """List decisions of all runs, newest first.

    Raises:
        InvalidInputError: the cursor is of another list.
    """
    behind = DecisionCursor.of(request)
    listed: list[DecisionWithPath] = []
    for found in decision_lists.searches(organisation_id, wanted, behind, request.limit + 1):
        # Paths are joined after the limit: a join before it may read all decisions.
        cut = found.limit(request.limit + 1).subquery()
        rows = tx.execute(
            select(cut, _RUN.c.path.label("run_path"), _BINDING.c.path.label("binding_account_path"), _NUMBER)
            .join(_RUN, join_on(_RUN, cut, id="run_id"))
            .join(account_metadata, join_on(account_metadata, cut, account_id="run_id"))
            .join(_BINDING, join_on(_BINDING, cut, id="binding_account_id"))
            .order_by(*decision_lists.newest_first(cut))
        )
        listed = [DecisionWithPath(_decision(row, ()), row.run_path, row.run_number) for row in rows]
        if len(listed) > request.limit:
            break
    return cut_page(listed, request.limit, lambda decided: str(decided.place), lambda decided: decided)


def _first_events(
    tx: Connection, organisation_id: str, run_id: str, decided: Sequence[Row[Any]]
) -> dict[int, tuple[StepEvent, ...]]:
    """Read the first events of some of a run's decisions, in order.

    The decisions share `EVENTS_ROOM` equally; each gets all of its events or the first that fit, possibly none.
    """
    share = EVENTS_ROOM // max(1, len(decided))
    positions = [row.position for row in decided]
    most = share // EVENT_BYTES
    further = (
        select(decision_events.c.position, *COLUMNS)
        .where(owned_by(decision_events, organisation_id, run_id=run_id), decision_events.c.position.in_(positions))
        .where(decision_events.c.item < most)
    )
    items = [(row.position, 0, row.event_fingerprint, row.event_count) for row in decided]
    for row in tx.execute(further).all():
        items += [(row.position, *item) for item in read_items(row, below=most)]
    items.sort()
    known = dp_events.c.organisation_id == organisation_id
    asked = {key for _, _, key, _ in items}
    lengths = select(dp_events.c.fingerprint, func.length(dp_events.c.canonical_json).label("size"))
    lengths = lengths.where(known, dp_events.c.fingerprint.in_(asked))
    sizes = {row.fingerprint: row.size for row in tx.execute(lengths)}
    left = dict.fromkeys(positions, share)
    fitting = []
    for position, _, key, count in items:
        left[position] -= EVENT_BYTES + sizes[key]
        if left[position] >= 0:
            fitting.append((position, key, count))
    shown = {key for _, key, _ in fitting}
    texts = select(dp_events.c.fingerprint, dp_events.c.canonical_json).where(known, dp_events.c.fingerprint.in_(shown))
    events = {row.fingerprint: read_event(row.canonical_json, row.fingerprint) for row in tx.execute(texts)}
    steps: dict[int, list[StepEvent]] = {position: [] for position in positions}
    for position, key, count in fitting:
        steps[position].append(StepEvent(events[key], count))
    return {position: tuple(first) for position, first in steps.items()}


def _decision(row: Row[Any], steps: tuple[StepEvent, ...]) -> Decision:
    """Read a decision from its row and the binding account's path."""
    return Decision(
        **{name: getattr(row, name) for name in _PLAIN},
        outcome=DecisionOutcome(row.outcome),
        steps=steps,
        reading=Reading(row.epsilon, Limit(row.limit_value, row.limit_delta, Unit(row.limit_unit)), row.used),
        binding_account_path=row.binding_account_path,
        actor=Actor(row.actor, row.request_id),
    )
