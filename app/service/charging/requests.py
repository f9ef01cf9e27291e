"""What is asked of the hot path, and what it answers."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.accounting.events import DpEvent, fingerprint
from app.ledger.accounts import StepEvent
from app.ledger.errors import InvalidInputError
from app.ledger.runs import Run
from app.persistence.repositories.decisions import Decision
from app.service.auth.request_context import RequestContext
from app.service.charging.loading import LoadRequest
from app.service.costing import PrecomputedCosts


class Mode(StrEnum):
    """Whether the steps are asked for, or have happened."""

    AUTHORIZE = "authorize"
    REPORT = "report"


class OnExceed(StrEnum):
    """What becomes of a request of which only the first steps fit."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class StepRequest:
    """May this run take these steps?

    Args:
        run_id: whose steps.
        items: (event, count) in order; an event of None is the run's default event.
        first_step: the number of the first step; None: whichever is next.
        idempotency_key: of the request, if it carries one.
        attempt: the trainer's fencing token; the run's current attempt is the only one that may charge.
        mode: whether the steps are asked for, or have happened.
        on_exceed: what becomes of them if only the first ones fit.
    """

    run_id: str
    items: tuple[tuple[DpEvent | None, int], ...]
    first_step: int | None
    idempotency_key: str | None
    attempt: int = 1
    mode: Mode = Mode.AUTHORIZE
    on_exceed: OnExceed = OnExceed.REFUSE

    def steps_of(self, run: Run) -> tuple[StepEvent, ...]:
        """What is asked, with the run's default event where the request names none.

        Raises:
            InvalidInputError: neither the request nor the run says what a step costs.
        """
        steps = []
        for event, count in self.items:
            charged = event or run.event
            if charged is None:
                raise InvalidInputError("The run has no default event; send `event` (or `events`) with the request.")
            steps.append(StepEvent(charged, count))
        return tuple(steps)

    def fingerprint(self, steps: tuple[StepEvent, ...]) -> str:
        """What makes the request the same as an earlier one: sha256 (hex) of run, steps, and what is not usual."""
        content: list[object] = [self.run_id, [[fingerprint(step.event), step.count] for step in steps]]
        unusual = {"mode": self.mode, "on_exceed": self.on_exceed}
        said = {name: str(value) for name, value in unusual.items() if value not in {Mode.AUTHORIZE, OnExceed.REFUSE}}
        if said:
            content.append(said)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclass(slots=True)
class StepCommand:
    """A request on its way through the queue; it may pass several times, each time better prepared.

    Args:
        call: who asks, and when.
        request: what is asked.
        ready: what was computed for it outside the transaction.
        needs_path: whether the accounts above the run must be locked although a reservation is believed to cover it.
        ends_plan: whether a reservation whose next steps were withdrawn is ended before the steps are decided, so that
            the rest of it is returned.
        charges_sweep: whether it is the one charge of a sweep.
    """

    call: RequestContext
    request: StepRequest
    ready: PrecomputedCosts
    needs_path: bool = False
    ends_plan: bool = False
    charges_sweep: bool = False

    @property
    def organisation_id(self) -> str:
        """Whose ledger."""
        return self.call.principal.organisation_id

    @property
    def now(self) -> datetime:
        """When the request came, in UTC."""
        return self.call.now

    @property
    def wanted(self) -> LoadRequest:
        """What the command needs of the ledger."""
        return LoadRequest(self.organisation_id, self.request.run_id, self.request.idempotency_key, self.needs_path)


class PathNotLockedError(Exception):
    """A command needs the accounts above its run, and only the run's own account was locked."""


class PlanWithdrawnError(Exception):
    """A reservation whose next steps a lowered limit has withdrawn is to be ended before a command is decided.

    Args:
        reservation_id: which.
    """

    def __init__(self, reservation_id: str) -> None:
        super().__init__("a reservation must be ended first")
        self.reservation_id = reservation_id


@dataclass(frozen=True, slots=True)
class StepResult:
    """A decision, and whether it was given before."""

    decision: Decision
    replayed: bool
