"""Schemas of runs."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from app.accounting.events import NeighboringRelation
from app.api.links import run_url
from app.api.schemas.account_creation import CreateAccount
from app.api.schemas.accounts import Account, account_members
from app.api.schemas.common import (
    AnsweredEvent,
    Input,
    Limit,
    LimitInput,
    Name,
    Output,
    Reference,
    Relation,
    example,
    readable,
)
from app.api.schemas.events import EventCounts, SentEvent, planned_events_of, step_events_of
from app.api.schemas.reservations import DEFAULT_LEASE_SECONDS, LeaseSeconds, WaitUntil
from app.api.schemas.steps import ExpectedSteps
from app.ledger.admission.composition import MAX_BUDGETS
from app.ledger.runs.deviations import DeviationKind
from app.ledger.runs.origins import MAX_MODEL_NAME, MAX_ORIGINS, Origins
from app.ledger.runs.origins import ModelOrigin as DomainModelOrigin
from app.ledger.runs.origins import RunOrigin as DomainRunOrigin
from app.ledger.runs.run import EndReason, RunStatus, declaration_of
from app.service.accounts.spec import AccountSpec
from app.service.queries.runs import RunRecord
from app.service.runs.register import RunRegistration

Sha256 = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]


class OriginInput(Input):
    """What a training starts from: a run of this ledger, or a model from outside by its name and digest."""

    model_config = example({"run": "mimic/icu-team/base"})

    run: Reference | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_MODEL_NAME), AfterValidator(readable)] | None = Field(
        default=None, description="Of a model from outside, as people know it."
    )
    sha256: Sha256 | None = Field(default=None, description="Of the file of that model.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [each is not None for each in (self.run, self.name, self.sha256)]
        if given not in ([True, False, False], [False, True, True]):
            raise ValueError("send either `run`, or `name` and `sha256` of a model from outside")
        return self

    def domain(self) -> DomainRunOrigin | DomainModelOrigin:
        """Convert to the domain."""
        if self.name is not None and self.sha256 is not None:
            return DomainModelOrigin(self.name, self.sha256.lower())
        assert self.run is not None, "it was checked"
        return DomainRunOrigin(self.run)


StartsFrom = Annotated[list[OriginInput], Field(max_length=MAX_ORIGINS)]


def origins_of(given: Sequence[OriginInput] | None) -> Origins | None:
    """Convert to the domain."""
    return None if given is None else tuple(each.domain() for each in given)


class CreateRun(CreateAccount):
    """A new training run under a budget, or directly under a population."""

    budget: Reference | None = Field(default=None, description="A budget or a population: its id or path.")
    budgets: Annotated[list[Reference], Field(min_length=1, max_length=MAX_BUDGETS)] | None = Field(
        default=None,
        description="Several budgets instead of `budget`, of one or several populations. Each step is charged to "
        "all of them or to none; without its own limit, the run has the first one's.",
    )
    event: SentEvent | None = Field(default=None, description="Default event of a step.")
    limit: LimitInput | None = Field(default=None, description="The run's own limit, in addition to those above.")
    privacy_unit: Name | None = Field(default=None, description="The trainer's privacy unit; must be the population's.")
    neighboring_relation: Relation | None = Field(
        default=None, description="The relation of its mechanism; must be the population's."
    )

    @model_validator(mode="after")
    def _charges_something(self) -> Self:
        if (self.budget is None) == (self.budgets is None):
            raise ValueError("send either `budget` or `budgets`: what the run's steps are charged to")
        if self.wait_until is not None and not self.reserve:
            raise ValueError("`wait_until` is how long a reservation waits: send `reserve`, or leave it out")
        return self

    reserve: EventCounts = Field(
        default=[],
        description="Steps to reserve for the run; if they are refused, no run is created. With `wait_until` the "
        "run is created and waits for them: its status is `waiting`.",
    )
    lease_seconds: LeaseSeconds = DEFAULT_LEASE_SECONDS
    wait_until: WaitUntil | None = None
    expected_steps: ExpectedSteps | None = Field(
        default=None,
        description="Number of all steps that the training means to take; by default those of `reserve` or `planned`. "
        "A refusal answers for the rest of them, and more steps are a deviation.",
    )
    declared_steps_per_hour: Annotated[float, Field(gt=0, le=1e12)] | None = Field(
        default=None, description="Maximum declared pace; a faster run is flagged."
    )
    starts_from: StartsFrom | None = Field(
        default=None,
        description="What its training starts from, which never changes: runs, and models from outside. Empty: from "
        "nothing that was trained before; null: not declared.",
    )

    def registration(self) -> RunRegistration:
        """Convert to the domain.

        Raises:
            PlanTooExpensiveError: pricing the events exceeds the work limit of a request.
        """
        limit = None if self.limit is None else self.limit.domain()
        return RunRegistration(
            (self.budget,) if self.budget is not None else tuple(self.budgets or ()),
            AccountSpec(self.name, limit, planned_events_of(self.planned), metadata=self.metadata()),
            None if self.event is None else self.event.domain,
            step_events_of(self.reserve),
            self.lease_seconds,
            self.privacy_unit,
            self.neighboring_relation,
            replace(declaration_of(self), starts_from=origins_of(self.starts_from)),
            wait_until=self.wait_until,
        )


class Deviation(Output):
    """The first deviation of a run's steps from its declaration, in one respect."""

    kind: DeviationKind
    declared: float | str | None
    observed: float | str | None
    first_step: int = Field(description="Number of the first such step.")


class RunOrigin(Output):
    """A run that a training starts from."""

    run: str


class ModelOrigin(Output):
    """A model from outside that a training starts from."""

    name: str
    sha256: str = Field(description="Of its file, in 64 lower-case digits.")


class Run(Account):
    """A run, its spending and its remaining budget."""

    number: int = Field(description="Tells apart the runs at one path, from 1 in the order of their creation.")
    budget: str = Field(description="The first of `budgets`; a population's id if the run is directly under it.")
    budget_path: str
    budgets: list[str] = Field(description="All budgets that its steps are charged to, in order.")
    population: str
    privacy_unit: str
    neighboring_relation: NeighboringRelation
    population_size: int | None = Field(description="Number of units in the population, if declared; it is public.")
    url: str = Field(description="The run's page.")
    status: RunStatus
    attempt: int
    next_step: int
    ended_at: datetime | None = Field(default=None, description="Null while it has not ended.")
    end_reason: EndReason | None = Field(
        default=None,
        description="Why it ended: `finished`, `budget_exhausted`, `aborted`, `lost` after a long silence, or "
        "`not_granted` because its reservation has waited in vain.",
    )
    event: AnsweredEvent | None
    reservation: str | None = Field(default=None, description="The active reservation of its steps.")
    waiting_reservation: str | None = Field(
        default=None, description="The reservation for which it waits: GET /v1/reservations/{id} says for what."
    )
    expected_steps: int | None = Field(description="Number of all steps that the training means to take.")
    declared_steps_per_hour: float | None
    starts_from: list[RunOrigin | ModelOrigin] | None = Field(
        description="What its training starts from, as its trainer declared it; null: not declared."
    )
    deviations: list[Deviation] = Field(description="First deviation of each kind and direction from its declaration.")
    limit: Limit | None
    steps_remaining: int | None = Field(
        description="Number of further default steps that every account admits, 0 in quarantine. Null: it has no "
        "default event, has ended, or waits for an approval or for its reservation."
    )
    binding_account: str | None = Field(description="The account with the least room, or in quarantine.")
    binding_account_path: str | None

    @classmethod
    def of(cls, record: RunRecord) -> Self:
        """Convert from the domain."""
        run, budget = record.run, record.budgets[0]
        return cls(
            **account_members(record.own, record.epsilon, record.delta, record.used, record.about),
            **run._asdict(),
            **asdict(run.declaration),
            number=record.about.number,
            budget=budget.id,
            budget_path=budget.path,
            budgets=[each.id for each in record.budgets],
            population_size=record.own.population.size,
            url=run_url(run.account_id),
            reservation=run.reservation_id,
            waiting_reservation=record.waiting,
            steps_remaining=record.steps_remaining,
            binding_account=record.binding and record.binding.id,
            binding_account_path=record.binding and record.binding.path,
        )
