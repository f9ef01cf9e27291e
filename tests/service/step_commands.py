"""Commands for groups and queues, and somebody who prepares them as often as they ask for it."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from app.accounting.events import DpEvent, Gaussian, event_to_dict
from app.ledger.accounts.account import Account
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts, organisations
from app.service.auth.authentication import Principal
from app.service.auth.request_context import RequestContext
from app.service.charging import readings
from app.service.charging.groups import commit_counted, commit_group
from app.service.charging.ledger_state import LedgerState
from app.service.charging.requests import Mode, OnExceed, StepCommand, StepRequest, StepResult
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import CostNotReadyError
from app.service.verification.verify import verify
from tests.conftest import Ledger

LOUD, QUIET, HUGE = Gaussian(60.0), Gaussian(90.0), Gaussian(1e-3)

PATIENCE_SECONDS = 30

_numbers = itertools.count()


def request(
    run: str,
    *items: tuple[DpEvent | None, int],
    first: int | None = None,
    key: str | None = None,
    attempt: int = 1,
    mode: str = "authorize",
    on_exceed: str = "refuse",
) -> StepRequest:
    """A request for steps; without items for one of the run's default."""
    return StepRequest(run, items or ((None, 1),), first, key, attempt, Mode(mode), OnExceed(on_exceed))


@dataclass
class CommandRunner:
    """A process that decides about groups, with a memory of its own."""

    ledger: Ledger
    organisation_id: str = ""
    memory: LedgerState = field(default_factory=LedgerState)

    def __post_init__(self) -> None:
        self.organisation_id = self.organisation_id or organisation(self.ledger)

    def call(self, now: datetime | None = None, role: Role = Role.TRAINER) -> RequestContext:
        caller = Principal(self.organisation_id, "key_test", role)
        return RequestContext(self.ledger.database, caller, now or datetime.now(UTC))

    def command(self, asked: StepRequest) -> StepCommand:
        return StepCommand(self.call(), asked)

    def once(self, *asked: StepRequest | StepCommand) -> list[Any]:
        """One group, decided as it comes, but for epsilons, which are computed while it waits."""
        with epsilons_at_once():
            return self._once(*asked)

    def _once(self, *asked: StepRequest | StepCommand) -> list[Any]:
        commands = [each if isinstance(each, StepCommand) else self.command(each) for each in asked]
        database = self.ledger.database
        found = {} if database.dialect == "sqlite" else commit_counted(database, self.memory, commands)
        left = [place for place in range(len(commands)) if place not in found]
        if left:
            others = [commands[place] for place in left]
            decided = database.retried(lambda: commit_group(database, self.memory, others))
            found |= dict(zip(left, decided, strict=True))
        return [found[place] for place in range(len(commands))]

    def group(self, *asked: StepRequest) -> list[Any]:
        """One group of commands that lack nothing: whatever they need was computed before, and nothing was decided."""
        commands = [self.command(each) for each in asked]
        for command in commands:
            self._prepare(command)
        outcomes = self.once(*commands)
        assert not any(isinstance(outcome, CostNotReadyError) for outcome in outcomes)
        return outcomes

    def charged(self, asked: StepRequest) -> Any:  # noqa: ANN401 - a decision
        [outcome] = self.group(asked)
        assert isinstance(outcome, StepResult), outcome
        return outcome.decision

    def path(self, run: str) -> list[Account]:
        with self.ledger.database.read(ALL_TENANTS) as tx:
            return [record.account for record in accounts.path_of(tx, self.organisation_id, run)]

    def _prepare(self, command: StepCommand) -> None:
        """Compute the prices of all events under the run's relation."""
        for account in self.path(command.request.run_id)[:1]:
            try:
                command.context.costs.require(account, [event or LOUD for event, _ in command.request.items])
            except CostNotReadyError as missing:
                missing.compute(self.organisation_id)
        command.context.costs.searches = 10**6  # a refusal goes without the noise that fits


EPSILON = readings._epsilon


@contextmanager
def epsilons_at_once() -> Iterator[None]:
    """Compute the epsilons of steps where they are missing."""
    with patch.object(readings, "_epsilon", computed_at_once):
        yield


def computed_at_once(work: UnitOfWork, *others: Any) -> float:  # noqa: ANN401 - passed on
    try:
        return EPSILON(work, *others)
    except CostNotReadyError as missing:
        missing.compute(work.organisation_id)
        return EPSILON(work, *others)


def organisation(ledger: Ledger, name: str = "hospital") -> str:
    with ledger.database.read(ALL_TENANTS) as tx:
        return str(organisations.find_organisation(tx, name))


def another(ledger: Ledger, **terms: Any) -> str:  # noqa: ANN401 - JSON is anything
    """A further run."""
    return ledger.run(**({"name": f"run{next(_numbers)}", "event": event_to_dict(LOUD)} | terms))


def sound(ledger: Ledger) -> bool:
    return verify(ledger.database).problems == ()
