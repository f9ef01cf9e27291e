"""Group commit: commands that arrive during a transaction form the next group.

Results are handed on after the commit of their group.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TypeVar

from opentelemetry.trace import Span
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError  # noqa: A004 - of its pool

from app.ledger.errors import LedgerUnavailableError
from app.ledger.permissions import Permission
from app.persistence.database import Database, error_summary
from app.persistence.sqlite import WriteLockBusyError
from app.service import metrics
from app.service.auth.request_context import RequestContext
from app.service.charging.groups import CommandResult, NotReady, commit_counted, commit_group, preview
from app.service.charging.ledger_state import LedgerState
from app.service.charging.requests import (
    ReservationRevokedError,
    StepCommand,
    StepRequest,
    StepResult,
)
from app.service.charging.reservation_ends import close_revoked
from app.service.costing import CostNotReadyError
from app.service.metrics import TRACES

T = TypeVar("T")

MOST_WAITING = 2048
MOST_OF_A_LANE = 1024
"""Maximum number of waiting commands, in total and per lane; further ones are refused."""

MOST_GROUPS = 8
"""Maximum number of concurrent transactions, where the database allows several."""

MOST_COMMANDS = 256
MOST_ITEMS = 4000
"""Maximum size of one transaction, in commands and in their step events."""

_QUIET_TURNS = 3
"""Turns of the event loop without a further request that end a group: answers are sent, and others read and queued."""

Done = Callable[[StepResult | Exception], None]
"""Receiver of a final result; it raises nothing."""

_Commit = Callable[[list[StepCommand]], Awaitable[dict[int, CommandResult]]]

_CRASHED = "The writer broke off, so the request may or may not have been carried out. Repeat it as it was."

_OUTAGES = (LedgerUnavailableError, OperationalError, InterfaceError, TimeoutError)
"""Failures of the database itself; retrying each command alone would only take longer."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    command: StepCommand
    done: Done
    span: Span | None
    asked_at: float


@dataclass
class CommitQueue:
    """The commands of this process to one database; for one event loop."""

    db: Database
    state: LedgerState = field(default_factory=LedgerState)
    _lanes: dict[str, deque[_Waiting]] = field(default_factory=dict)
    _writers: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    _preparing: "set[asyncio.Task[None]]" = field(default_factory=set)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MOST_GROUPS, "group"))

    def submit(self, context: RequestContext, request: StepRequest, done: Done, span: Span | None = None) -> None:
        """Decide a run's next steps; call `done` once, with the durable decision or an error of `authorize_steps`.

        Raises:
            PermissionDeniedError: the caller may not authorise steps.
            LedgerUnavailableError: too many commands wait; nothing was changed.
        """
        context.require_permission(Permission.STEP_AUTHORIZE)
        self._enqueue(_Waiting(StepCommand(context, request, ends_reservation=True), done, span, perf_counter()))

    async def authorize_steps(self, context: RequestContext, request: StepRequest) -> StepResult:
        """Decide a run's next steps; return when the decision is durable.

        Raises:
            LedgerUnavailableError: too many commands wait, or the database is busy; nothing was changed.
            SQLAlchemyError: the database failed; it is safe to repeat the request.
            Also those of `decide`.
        """
        answer: asyncio.Future[StepResult | Exception] = asyncio.get_running_loop().create_future()

        def done(outcome: StepResult | Exception) -> None:
            if not answer.done():  # its request was cancelled
                answer.set_result(outcome)

        with TRACES.span("authorize_steps") as span:
            self.submit(context, request, done, span)
            outcome = await answer
        if isinstance(outcome, StepResult):
            return outcome
        raise outcome

    async def preview(self, context: RequestContext, request: StepRequest) -> StepResult:
        """Decide as `authorize_steps` without recording."""
        context.require_permission(Permission.STEP_AUTHORIZE)
        command = StepCommand(context, request)
        while isinstance(outcome := await asyncio.to_thread(preview, self.db, self.state, command), NotReady):
            await self._meet(command, outcome)
        if isinstance(outcome, StepResult):
            return outcome
        raise outcome

    @property
    def waiting(self) -> int:
        """Number of waiting commands."""
        return sum(map(len, self._lanes.values()))

    async def close(self) -> None:
        """Write the waiting commands and stop."""
        while unfinished := [*self._writers.values(), *self._preparing]:
            await asyncio.gather(*unfinished)
        self._threads.shutdown()

    def _enqueue(self, waiting: _Waiting) -> None:
        # SQLite has one writer; on PostgreSQL, an organisation with locked rows must not delay others.
        name = "" if self.db.dialect == "sqlite" else waiting.command.context.organisation_id
        lane = self._lanes.get(name, ())
        if len(lane) >= MOST_OF_A_LANE or self.waiting >= MOST_WAITING:
            raise LedgerUnavailableError("Too many requests wait to be written. Retry the request shortly.")
        self._lanes.setdefault(name, deque()).append(waiting)
        if name not in self._writers:
            self._writers[name] = asyncio.create_task(self._write(name))

    async def _write(self, name: str) -> None:
        """Write groups until the lane is empty."""
        lane = self._lanes[name]
        group: list[_Waiting] = []
        try:
            while lane:
                size, quiet = 0, 0
                while quiet < _QUIET_TURNS:  # requests that are read now may join
                    quiet = quiet + 1 if size == len(lane) else 0
                    size = len(lane)
                    await asyncio.sleep(0)
                group = _next_group(lane)
                with TRACES.shared("commit", [waiting.span for waiting in group]):
                    outcomes = await self._committed([waiting.command for waiting in group])
                self._settle(group, outcomes)
                group = []
        finally:  # even if the writer is cancelled, every request gets a result
            del self._lanes[name], self._writers[name]
            for waiting in (*group, *lane):
                waiting.done(LedgerUnavailableError(_CRASHED))

    def _settle(self, group: Sequence[_Waiting], outcomes: "Sequence[CommandResult | Exception]") -> None:
        """Hand on final results, and prepare the other commands for another attempt."""
        unready: dict[NotReady, list[_Waiting]] = {}
        for waiting, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, NotReady):
                unready.setdefault(outcome, []).append(waiting)
                continue
            if isinstance(outcome, StepResult):
                metrics.STEP_AUTHORIZATION.observe(perf_counter() - waiting.asked_at)
            waiting.done(outcome)
        for missing, several in unready.items():
            task = asyncio.create_task(self._prepare(several, missing))
            self._preparing.add(task)
            task.add_done_callback(self._preparing.discard)

    async def _prepare(self, several: list[_Waiting], missing: NotReady) -> None:
        """Meet the prerequisite of the first of several commands beside the queue, and let them wait again in order."""
        first = several[0]
        try:
            await self._meet(first.command, missing)
        except Exception as error:  # noqa: BLE001 - it is the first request's alone
            first.done(error)
            del several[0]
        for waiting in several:  # nothing was decided
            try:
                self._enqueue(waiting)
            except LedgerUnavailableError as error:
                waiting.done(error)

    async def _meet(self, command: StepCommand, missing: NotReady) -> None:
        """Meet a prerequisite of a command, without a lock."""
        match missing:
            case CostNotReadyError():
                await missing.computed(command.context.organisation_id)
            case ReservationRevokedError(reservation_id=ended):
                await asyncio.to_thread(close_revoked, command.context, command.request.run_id, ended)

    async def _committed(self, commands: list[StepCommand]) -> "list[CommandResult | Exception]":
        """Commit a group; on PostgreSQL, first what can be counted."""
        outcomes = {} if self.db.dialect == "sqlite" else await self._outcomes(commands, self._count)
        left = [place for place in range(len(commands)) if place not in outcomes]
        if left:
            found = await self._outcomes([commands[place] for place in left], self._decide)
            outcomes |= {left[place]: outcome for place, outcome in found.items()}
        return [outcomes[place] for place in range(len(commands))]

    async def _outcomes(self, commands: list[StepCommand], commit: _Commit) -> "dict[int, CommandResult | Exception]":
        """Commit what a function can of a group, by place; repeat commands alone if one may be at fault."""
        began_at = perf_counter()
        try:
            outcomes = await commit(commands)
        except Exception as error:
            foreseen = isinstance(error, _OUTAGES)
            metrics.count_failed_group(foreseen=foreseen)
            why = error_summary(error)
            # Tracebacks of a database outage would flood the log.
            _logger.exception(
                "A group of %d commands could not be written: %s", len(commands), why, exc_info=not foreseen
            )
            if len(commands) == 1 or foreseen:
                return dict.fromkeys(range(len(commands)), error)
        else:
            outcomes_and_steps = [
                (metrics.REPLAYED if each.replayed else each.decision.outcome, each.decision.requested_count)
                for each in outcomes.values()
                if isinstance(each, StepResult)
            ]
            if outcomes:
                metrics.count_group(len(outcomes), perf_counter() - began_at, outcomes_and_steps)
            return {**outcomes}
        alone = [await self._outcomes([command], commit) for command in commands]
        return {place: outcome for place, found in enumerate(alone) for outcome in found.values()}

    async def _count(self, commands: list[StepCommand]) -> dict[int, CommandResult]:
        return await self._in_thread(partial(commit_counted, self.db, self.state, commands))

    async def _decide(self, commands: list[StepCommand]) -> dict[int, CommandResult]:
        if self.db.dialect == "sqlite":
            # On this thread: a handover to another one takes longer than the write.
            try:
                return dict(enumerate(commit_group(self.db, self.state, commands, wait=False)))
            except WriteLockBusyError:
                pass
        commit = partial(commit_group, self.db, self.state, commands)
        return dict(enumerate(await self._in_thread(partial(self.db.retried, commit))))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _next_group(lane: deque[_Waiting]) -> list[_Waiting]:
    group: list[_Waiting] = []
    items = 0
    while lane and len(group) < MOST_COMMANDS and items < MOST_ITEMS:
        group.append(lane.popleft())
        items += len(group[-1].command.request.items)
    return group
