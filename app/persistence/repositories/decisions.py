"""Decisions: every admitted and every refused request for steps, with what was asked."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, insert, select

from app.accounting.events import fingerprint
from app.ledger.accounts import StepEvent
from app.ledger.admission import Reading
from app.persistence.repositories.events import read_event
from app.persistence.tables import accounts, decisions, dp_events, step_events


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request for steps, as it was given and for ever.

    Args:
        run_id: whose steps.
        position: its place among the run's decisions, from 0.
        attempt: of the run.
        admitted: or refused.
        steps: what was asked.
        first_step: the number of the first step.
        step_count: how many steps.
        reading: of the run, afterwards.
        steps_remaining: further repetitions of the last event; None if refused.
        binding_account_id: the account that leaves the fewest.
        binding_account_path: its path of names.
        refusal: the numbers of a refusal; None if admitted.
        request_fingerprint: sha256 (hex) of what was asked.
        idempotency_key: of the request, if it carried one.
        created_at: in UTC.
    """

    run_id: str
    position: int
    attempt: int
    admitted: bool
    steps: tuple[StepEvent, ...]
    first_step: int
    step_count: int
    reading: Reading
    steps_remaining: int | None
    binding_account_id: str
    binding_account_path: str
    refusal: dict[str, Any] | None
    request_fingerprint: str
    idempotency_key: str | None
    created_at: datetime

    @property
    def next_step(self) -> int:
        """The number of the step after the last one that is admitted by this decision."""
        return self.first_step + self.step_count if self.admitted else self.first_step


_DECISIONS = select(decisions, accounts.c.path.label("binding_account_path")).join(
    accounts,
    (accounts.c.organisation_id == decisions.c.organisation_id) & (accounts.c.id == decisions.c.binding_account_id),
)

# A statement of the hot path is built once: building it costs as much as executing it.
_BY_KEY = _DECISIONS.where(
    decisions.c.organisation_id == bindparam("of_organisation"),
    decisions.c.idempotency_key == bindparam("of_key"),
)


def add(tx: Connection, organisation_id: str, decision: Decision) -> None:
    """Append a decision and the events that were asked; the events must be remembered already."""
    tx.execute(
        insert(decisions),
        {
            "organisation_id": organisation_id,
            "run_id": decision.run_id,
            "position": decision.position,
            "attempt": decision.attempt,
            "outcome": "admitted" if decision.admitted else "refused",
            "idempotency_key": decision.idempotency_key,
            "request_fingerprint": decision.request_fingerprint,
            "first_step": decision.first_step,
            "step_count": decision.step_count,
            "next_step": decision.next_step if decision.admitted else None,
            "follows_step": (decision.first_step or None) if decision.admitted else None,
            "epsilon": decision.reading.epsilon,
            "delta": decision.reading.delta,
            "epsilon_limit": decision.reading.epsilon_limit,
            "steps_remaining": decision.steps_remaining,
            "binding_account_id": decision.binding_account_id,
            "refusal": None if decision.refusal is None else json.dumps(decision.refusal),
            "created_at": decision.created_at,
        },
    )
    tx.execute(
        insert(step_events),
        [
            {
                "organisation_id": organisation_id,
                "run_id": decision.run_id,
                "position": decision.position,
                "item": item,
                "event_fingerprint": fingerprint(step.event),
                "count": step.count,
            }
            for item, step in enumerate(decision.steps)
        ],
    )


def find_by_key(tx: Connection, organisation_id: str, idempotency_key: str) -> Decision | None:
    """The decision that this key has pinned."""
    asked = {"of_organisation": organisation_id, "of_key": idempotency_key}
    return _one(tx, organisation_id, tx.execute(_BY_KEY, asked).one_or_none())


def find_admitted(tx: Connection, organisation_id: str, run_id: str, attempt: int, first_step: int) -> Decision | None:
    """The decision that admitted the steps which begin here."""
    found = _of(organisation_id).where(
        decisions.c.run_id == run_id,
        decisions.c.attempt == attempt,
        decisions.c.first_step == first_step,
        decisions.c.outcome == "admitted",
    )
    return _one(tx, organisation_id, tx.execute(found).one_or_none())


def at_positions(tx: Connection, organisation_id: str, run_id: str, positions: Sequence[int]) -> list[Decision]:
    """A run's decisions at these places, in order."""
    found = _of(organisation_id).where(decisions.c.run_id == run_id, decisions.c.position.in_(positions))
    rows = tx.execute(found.order_by(decisions.c.position)).all()
    events = _events(tx, organisation_id, run_id, [row.position for row in rows])
    return [_decision(row, events[row.position]) for row in rows]


@dataclass(frozen=True, slots=True)
class Charge:
    """An admitted step event, as it is kept: what it was is known by its fingerprint.

    Args:
        position: of its decision among the run's.
        first_step: of its decision.
        next_step: of its decision.
        event_fingerprint: which event.
        count: how many repetitions.
    """

    position: int
    first_step: int
    next_step: int
    event_fingerprint: str
    count: int


def charges(tx: Connection, organisation_id: str, run_id: str) -> Iterable[Charge]:
    """Every admitted step event of a run, in order."""
    found = (
        select(
            decisions.c.position,
            decisions.c.first_step,
            decisions.c.next_step,
            step_events.c.event_fingerprint,
            step_events.c.count.label("times"),
        )
        .join(
            step_events,
            (step_events.c.organisation_id == decisions.c.organisation_id)
            & (step_events.c.run_id == decisions.c.run_id)
            & (step_events.c.position == decisions.c.position),
        )
        .where(
            decisions.c.organisation_id == organisation_id,
            decisions.c.run_id == run_id,
            decisions.c.outcome == "admitted",
        )
        .order_by(decisions.c.position, step_events.c.item)
    )
    for row in tx.execute(found):
        yield Charge(row.position, row.first_step, row.next_step, row.event_fingerprint, row.times)


def _of(organisation_id: str) -> Select[Any]:
    return _DECISIONS.where(decisions.c.organisation_id == organisation_id)


def _one(tx: Connection, organisation_id: str, row: Row[Any] | None) -> Decision | None:
    if row is None:
        return None
    return _decision(row, _events(tx, organisation_id, row.run_id, [row.position])[row.position])


def _events(
    tx: Connection, organisation_id: str, run_id: str, positions: Sequence[int]
) -> dict[int, tuple[StepEvent, ...]]:
    found = (
        select(
            step_events.c.position,
            step_events.c.count.label("times"),
            dp_events.c.canonical,
            dp_events.c.fingerprint,
        )
        .join(
            dp_events,
            (dp_events.c.organisation_id == step_events.c.organisation_id)
            & (dp_events.c.fingerprint == step_events.c.event_fingerprint),
        )
        .where(
            step_events.c.organisation_id == organisation_id,
            step_events.c.run_id == run_id,
            step_events.c.position.in_(positions),
        )
        .order_by(step_events.c.position, step_events.c.item)
    )
    events: dict[int, tuple[StepEvent, ...]] = {}
    for row in tx.execute(found):
        step = StepEvent(read_event(row.canonical, row.fingerprint), row.times)
        events[row.position] = (*events.get(row.position, ()), step)
    return events


def _decision(row: Row[Any], steps: tuple[StepEvent, ...]) -> Decision:
    return Decision(
        run_id=row.run_id,
        position=row.position,
        attempt=row.attempt,
        admitted=row.outcome == "admitted",
        steps=steps,
        first_step=row.first_step,
        step_count=row.step_count,
        reading=Reading(row.epsilon, row.delta, row.epsilon_limit),
        steps_remaining=row.steps_remaining,
        binding_account_id=row.binding_account_id,
        binding_account_path=row.binding_account_path,
        refusal=row.refusal and json.loads(row.refusal),
        request_fingerprint=row.request_fingerprint,
        idempotency_key=row.idempotency_key,
        created_at=row.created_at,
    )
