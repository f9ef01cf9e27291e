"""Decisions on requests for steps, admitted and refused."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, or_, select

from app.accounting.events import fingerprint
from app.ledger.accounts import StepEvent
from app.ledger.admission import Reading
from app.ledger.decisions import Decision, DecisionOutcome
from app.ledger.hash_chain import Actor
from app.persistence.bulk import BulkStatement
from app.persistence.repositories.decision_event_previews import first_events
from app.persistence.repositories.dp_events import read_event
from app.persistence.repositories.partial_indexes import ADVANCED
from app.persistence.tables import accounts, decision_events, decisions, dp_events

_DECISIONS = select(decisions, accounts.c.path.label("binding_account_path")).join(
    accounts,
    (accounts.c.organisation_id == decisions.c.organisation_id) & (accounts.c.id == decisions.c.binding_account_id),
)

# Hot-path statements are built once: building one costs as much as executing it.
_BY_KEYS = _DECISIONS.where(
    decisions.c.organisation_id == bindparam("of_organisation"),
    decisions.c.idempotency_key.in_(bindparam("of_keys", expanding=True)),
)
_ADDED = BulkStatement(decisions)
_ADDED_ITEMS = BulkStatement(decision_events)


def add_all(tx: Connection, decided: Sequence[tuple[str, Decision]]) -> None:
    """Add decisions and their items; the events must exist."""
    _ADDED.execute(tx, [_values(organisation_id, decision) for organisation_id, decision in decided])
    items = [
        {
            "organisation_id": organisation_id,
            "run_id": decision.run_id,
            "position": decision.position,
            "item": item,
            "event_fingerprint": fingerprint(step.event),
            "count": step.count,
        }
        for organisation_id, decision in decided
        for item, step in enumerate(decision.steps)
    ]
    _ADDED_ITEMS.execute(tx, items)


def _values(organisation_id: str, decision: Decision) -> dict[str, Any]:
    went_on = decision.admitted
    return {
        "organisation_id": organisation_id,
        "run_id": decision.run_id,
        "position": decision.position,
        "attempt": decision.attempt,
        "outcome": str(decision.outcome),
        "idempotency_key": decision.idempotency_key,
        "request_fingerprint": decision.request_fingerprint,
        "first_step": decision.first_step,
        "step_count": decision.step_count,
        "requested_count": decision.requested_count,
        "next_step": decision.next_step if went_on else None,
        "follows_step": decision.first_step if went_on and not decision.opens_attempt else None,
        "opens_step": decision.first_step if went_on and decision.opens_attempt else None,
        "epsilon": decision.reading.epsilon,
        "delta": decision.reading.delta,
        "epsilon_limit": decision.reading.epsilon_limit,
        "steps_remaining": decision.steps_remaining,
        "binding_account_id": decision.binding_account_id,
        "refusal_details": decision.refusal_details,
        "reservation_id": decision.reservation_id,
        "entry_hash": decision.entry_hash,
        "created_at": decision.created_at,
        "actor": decision.asker.actor,
        "request_id": decision.asker.request_id,
    }


def find_by_keys(tx: Connection, organisation_id: str, idempotency_keys: Sequence[str]) -> list[Decision]:
    """Find decisions by idempotency keys, without their steps: a repeated request has them."""
    rows = tx.execute(_BY_KEYS, {"of_organisation": organisation_id, "of_keys": idempotency_keys})
    return [read_decision(row, ()) for row in rows]


def find_by_key(tx: Connection, organisation_id: str, idempotency_key: str) -> Decision | None:
    """Find a decision by its idempotency key, without its steps."""
    return next(iter(find_by_keys(tx, organisation_id, [idempotency_key])), None)


def find_admitted(tx: Connection, organisation_id: str, places: Iterable[tuple[str, int, int]]) -> list[Decision]:
    """Find the decisions that admitted steps from a run, attempt and first step on, without these steps."""
    these = [
        (decisions.c.run_id == run_id) & (decisions.c.attempt == attempt) & (decisions.c.first_step == first_step)
        for run_id, attempt, first_step in places
    ]
    found = _of(organisation_id).where(or_(*these), ADVANCED)
    return [read_decision(row, ()) for row in tx.execute(found)]


def at_positions(
    tx: Connection, organisation_id: str, run_id: str, positions: Sequence[int], room: int | None = None
) -> list[Decision]:
    """List a run's decisions at some positions; `room` bytes limit the steps read."""
    found = _of(organisation_id).where(decisions.c.run_id == run_id, decisions.c.position.in_(positions))
    rows = tx.execute(found.order_by(decisions.c.position)).all()
    places = [row.position for row in rows]
    if room is None:
        events = _events(tx, organisation_id, run_id, places)
    else:
        events = first_events(tx, organisation_id, run_id, places, room)
    return [read_decision(row, events[row.position]) for row in rows]


def _of(organisation_id: str) -> Select[Any]:
    return _DECISIONS.where(decisions.c.organisation_id == organisation_id)


def _events(
    tx: Connection, organisation_id: str, run_id: str, positions: Sequence[int]
) -> dict[int, tuple[StepEvent, ...]]:
    found = (
        select(
            decision_events.c.position,
            decision_events.c.count.label("times"),
            dp_events.c.canonical_json,
            dp_events.c.fingerprint,
        )
        .join(
            dp_events,
            (dp_events.c.organisation_id == decision_events.c.organisation_id)
            & (dp_events.c.fingerprint == decision_events.c.event_fingerprint),
        )
        .where(
            decision_events.c.organisation_id == organisation_id,
            decision_events.c.run_id == run_id,
            decision_events.c.position.in_(positions),
        )
        .order_by(decision_events.c.position, decision_events.c.item)
    )
    events: dict[int, list[StepEvent]] = {}
    for row in tx.execute(found):
        step = StepEvent(read_event(row.canonical_json, row.fingerprint), row.times)
        events.setdefault(row.position, []).append(step)
    return {position: tuple(steps) for position, steps in events.items()}


def read_decision(row: Row[Any], steps: tuple[StepEvent, ...]) -> Decision:
    """Read a decision from its row and the binding account's path."""
    return Decision(
        run_id=row.run_id,
        position=row.position,
        attempt=row.attempt,
        outcome=DecisionOutcome(row.outcome),
        steps=steps,
        first_step=row.first_step,
        step_count=row.step_count,
        requested_count=row.requested_count,
        reading=Reading(row.epsilon, row.delta, row.epsilon_limit),
        steps_remaining=row.steps_remaining,
        binding_account_id=row.binding_account_id,
        binding_account_path=row.binding_account_path,
        refusal_details=row.refusal_details,
        request_fingerprint=row.request_fingerprint,
        idempotency_key=row.idempotency_key,
        reservation_id=row.reservation_id,
        created_at=row.created_at,
        opens_attempt=row.opens_step is not None,
        asker=Actor(row.actor, row.request_id),
        entry_hash=row.entry_hash,
    )
