"""Group commit: commands that arrive during a transaction form the next group.

Responses are sent after the commit of their group.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from opentelemetry.trace import Span
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError  # noqa: A004 - of its pool

from app.ledger.errors import LedgerUnavailableError
from app.ledger.permissions import Permission
from app.persistence.database import Database, error_summary
from app.persistence.sqlite import WriteLockBusyError
from app.service import metrics
from app.service.auth.request_context import RequestContext
from app.service.charging.close import close_revoked
from app.service.charging.groups import CommandResult, commit_group, preview
from app.service.charging.requests import (
    PathNotLockedError,
    PlanRevokedError,
    StepCommand,
    StepRequest,
    StepResult,
)
from app.service.charging.saving import LedgerCache
from app.service.costing import CostNotReadyError
from app.service.metrics import TRACES

MOST_WAITING = 2048
MOST_OF_A_LANE = 1024
"""Maximum number of waiting commands, in total and per lane; further ones are refused."""

MOST_GROUPS = 8
"""Maximum number of concurrent transactions, where the database allows several."""

MOST_COMMANDS = 256
MOST_ITEMS = 4000
"""Maximum size of one transaction, in commands and in their step events."""

_CRASHED = "The writer broke off, so the request may or may not have been carried out. Repeat it as it was."

_OUTAGES = (LedgerUnavailableError, OperationalError, InterfaceError, TimeoutError)
"""Failures of the database itself; retrying each command alone would only take longer."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    command: StepCommand
    answer: "asyncio.Future[CommandResult | Exception]"
    span: Span | None


@dataclass
class CommitQueue:
    """The commands of this process to one database; for one event loop."""

    db: Database
    memory: LedgerCache = field(default_factory=LedgerCache)
    _lanes: dict[str, deque[_Waiting]] = field(default_factory=dict)
    _writers: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MOST_GROUPS, "group"))

    async def authorize_steps(self, context: RequestContext, request: StepRequest) -> StepResult:
        """Decide a run's next steps; return when the decision is durable.

        Raises:
            LedgerUnavailableError: too many commands wait, or the database is busy; nothing was changed.
            SQLAlchemyError: the database failed; it is safe to repeat the request.
            Also those of `decide`.
        """
        context.require_permission(Permission.STEP_AUTHORIZE)
        command = StepCommand(context, request, ends_plan=True)
        asked_at = perf_counter()
        result = await self._repeated(command, self._submit)
        metrics.STEP_AUTHORIZATION.observe(perf_counter() - asked_at)
        return result

    async def preview(self, context: RequestContext, request: StepRequest) -> StepResult:
        """Decide as `authorize_steps` without recording."""
        context.require_permission(Permission.STEP_AUTHORIZE)
        return await self._repeated(StepCommand(context, request), self._preview)

    @property
    def waiting(self) -> int:
        """Number of waiting commands."""
        return sum(map(len, self._lanes.values()))

    async def close(self) -> None:
        """Write the waiting commands and stop."""
        await asyncio.gather(*self._writers.values())
        self._threads.shutdown()

    async def _repeated(
        self, command: StepCommand, attempt: "Callable[[StepCommand], Awaitable[CommandResult | Exception]]"
    ) -> StepResult:
        """Repeat a command until its prerequisites are met, without a lock."""
        while True:
            match await attempt(command):
                case StepResult() as result:
                    return result
                case CostNotReadyError() as missing:
                    await missing.computed(command.context.organisation_id)
                case PathNotLockedError():
                    command.needs_path = True
                case PlanRevokedError(reservation_id=ended):
                    await asyncio.to_thread(close_revoked, self.db, command.context, command.request.run_id, ended)
                case error:
                    raise error

    async def _preview(self, command: StepCommand) -> CommandResult:
        return await asyncio.to_thread(preview, self.db, self.memory, command)

    async def _submit(self, command: StepCommand) -> CommandResult | Exception:
        # SQLite has one writer; on PostgreSQL, an organisation with locked rows must not delay others.
        name = "" if self.db.dialect == "sqlite" else command.context.organisation_id
        lane = self._lanes.get(name, ())
        if len(lane) >= MOST_OF_A_LANE or self.waiting >= MOST_WAITING:
            raise LedgerUnavailableError("Too many requests wait to be written. Retry the request shortly.")
        with TRACES.span("authorize_steps") as span:
            waiting = _Waiting(command, asyncio.get_running_loop().create_future(), span)
            self._lanes.setdefault(name, deque()).append(waiting)
            if name not in self._writers:
                self._writers[name] = asyncio.create_task(self._write(name))
            return await waiting.answer

    async def _write(self, name: str) -> None:
        """Write groups until the lane is empty."""
        lane = self._lanes[name]
        group: list[_Waiting] = []
        try:
            while lane:
                size = -1
                while size != len(lane):  # requests being parsed may join; a lone one waits one loop turn
                    size = len(lane)
                    await asyncio.sleep(0)
                group = _next_group(lane)
                with TRACES.shared("commit", [waiting.span for waiting in group]):
                    outcomes = await self._committed([waiting.command for waiting in group])
                for waiting, outcome in zip(group, outcomes, strict=True):
                    if not waiting.answer.done():  # its request was cancelled
                        waiting.answer.set_result(outcome)
        finally:  # even if the writer is cancelled, every request gets a result
            del self._lanes[name], self._writers[name]
            for waiting in (*group, *lane):
                if not waiting.answer.done():
                    waiting.answer.set_result(LedgerUnavailableError(_CRASHED))

    async def _committed(self, commands: list[StepCommand]) -> "list[CommandResult | Exception]":
        """Commit a group; retry commands alone if one may be at fault."""
        began_at = perf_counter()
        try:
            outcomes = await self._tried(commands)
        except Exception as error:
            foreseen = isinstance(error, _OUTAGES)
            metrics.count_failed_group(foreseen=foreseen)
            why = error_summary(error)
            # Tracebacks of a database outage would flood the log.
            _logger.exception(
                "A group of %d commands could not be written: %s", len(commands), why, exc_info=not foreseen
            )
            if len(commands) == 1 or foreseen:
                return [error] * len(commands)
        else:
            outcomes_and_steps = [
                (metrics.REPLAYED if each.replayed else each.decision.outcome, each.decision.requested_count)
                for each in outcomes
                if isinstance(each, StepResult)
            ]
            metrics.count_group(len(commands), perf_counter() - began_at, outcomes_and_steps)
            return outcomes
        return [(await self._committed([command]))[0] for command in commands]

    async def _tried(self, commands: list[StepCommand]) -> "list[CommandResult | Exception]":
        if self.db.dialect == "sqlite":
            # On this thread: a handover to another one takes longer than the write.
            try:
                return list(commit_group(self.db, self.memory, commands, wait=False))
            except WriteLockBusyError:
                pass
        work = partial(commit_group, self.db, self.memory, commands)
        return list(await asyncio.get_running_loop().run_in_executor(self._threads, self.db.retried, work))


def _next_group(lane: deque[_Waiting]) -> list[_Waiting]:
    group: list[_Waiting] = []
    items = 0
    while lane and len(group) < MOST_COMMANDS and items < MOST_ITEMS:
        group.append(lane.popleft())
        items += len(group[-1].command.request.items)
    return group
