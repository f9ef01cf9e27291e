"""Schemas of experiments."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from app.accounting.formulas.repeat_and_select import MAX_MEAN, MAX_SHAPE, MIN_SHAPE
from app.api.schemas.account_creation import CreateAccount
from app.api.schemas.common import (
    AnsweredEvent,
    ExtendedNumber,
    Input,
    LimitInput,
    Name,
    Output,
    Reference,
    Relation,
)
from app.api.schemas.events import EventCounts, planned_events_of, step_events_of
from app.api.schemas.refusals import refusal_facts
from app.api.schemas.reservations import not_made
from app.api.schemas.runs import StartsFrom, origins_of
from app.ledger.admission.composition import MAX_BUDGETS
from app.ledger.experiments import ChargingMode, sweep_event
from app.ledger.runs.decisions import Decision
from app.ledger.runs.run import RunDeclaration, RunStatus
from app.ledger.step_events import StepEvent
from app.service.accounts.spec import AccountSpec
from app.service.experiments import ExperimentRecord
from app.service.idempotency import StoredResponse
from app.service.runs.register import RunRegistration


class Trials(Input):
    """The trials of a sweep that is charged as a whole."""

    events: EventCounts = Field(min_length=1, description="Events of one trial, for all hyper-parameters.")
    mean: float = Field(ge=1, le=MAX_MEAN, description="Expected number of trials.")
    shape: Annotated[float, Field(ge=MIN_SHAPE, le=MAX_SHAPE)] | None = Field(
        default=1.0,
        description="Of the truncated negative binomial distribution of their number: 1 geometric, 0 logarithmic; "
        "null: Poisson.",
    )


class CreateExperiment(CreateAccount):
    """A sweep: many trainings of which one is chosen."""

    charging_mode: Annotated[ChargingMode, Field(strict=False)] = Field(
        description="`each_run`: runs are registered under the experiment, each is charged, and all may be looked "
        "at. `repeat_and_select`: the whole sweep is charged now, its number of trials is drawn, and only the best "
        "one may be looked at."
    )
    budget: Reference | None = None
    budgets: Annotated[list[Reference], Field(min_length=1, max_length=MAX_BUDGETS)] | None = Field(
        default=None, description="Several instead of `budget`, for a sweep that is charged as a whole."
    )
    limit: LimitInput | None = Field(default=None, description="Of all runs together; by default the parent budget's.")
    trials: Trials | None = Field(default=None, description="For a sweep that is charged as a whole.")
    privacy_unit: Name | None = Field(default=None, description="The trainer's privacy unit; must be the population's.")
    neighboring_relation: Relation | None = Field(
        default=None, description="The relation of its mechanisms; must be the population's."
    )

    starts_from: StartsFrom | None = Field(
        default=None, description="What the trials of a sweep that is charged as a whole start from; as of a run."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.budget is None) == (self.budgets is None):
            raise ValueError("send either `budget` or `budgets`, the accounts to charge")
        if self.charging_mode is ChargingMode.EACH_RUN:
            refused = {"budgets", "trials", "privacy_unit", "neighboring_relation", "starts_from"}
            where = "each run states this when it is registered"
        else:
            refused = {"limit", "planned"}
            where = "a sweep that is charged all at once is one charge: the limits above it decide"
            if self.trials is None:
                raise ValueError('send `trials` with "charging_mode": "repeat_and_select": what each of them does')
        said = sorted(name for name in refused & self.model_fields_set if getattr(self, name) is not None)
        if said:
            raise ValueError(f"leave out `{'`, `'.join(said)}`: {where}")
        return self

    def terms(self) -> AccountSpec:
        """Convert to the specification of the budget of individually charged runs."""
        limit = None if self.limit is None else self.limit.domain()
        return AccountSpec(self.name, limit, planned_events_of(self.planned), metadata=self.metadata())

    def sweep(self) -> RunRegistration:
        """Convert to a sweep that is charged as a whole.

        Raises:
            PlanTooExpensiveError: pricing a trial exceeds the work limit of a request.
        """
        assert self.trials is not None, "it was checked"
        event = sweep_event(step_events_of(self.trials.events), self.trials.mean, self.trials.shape)
        return RunRegistration(
            (self.budget,) if self.budget is not None else tuple(self.budgets or ()),
            AccountSpec(self.name, None, (StepEvent(event, 1),), metadata=self.metadata()),
            event,
            privacy_unit=self.privacy_unit,
            relation=self.neighboring_relation,
            declaration=RunDeclaration(starts_from=origins_of(self.starts_from)),
            bounded=True,
        )


class Experiment(Output):
    """A sweep and its total cost."""

    id: str
    name: str
    path: str
    charging_mode: ChargingMode
    account: str = Field(description="The budget of its runs, or the run that pays for all trials.")
    budget: str = Field(description="The first parent budget of that account.")
    population: str
    run: str | None = Field(description="The run that pays for all trials; null: each run is charged.")
    status: RunStatus | None = Field(description="Of that run.")
    event: AnsweredEvent | None = Field(description="The charge of the whole sweep; null: each run is charged.")
    runs: int = Field(description="Number of its registered runs.")
    epsilon: ExtendedNumber = Field(description="Of all of them together.")
    delta: float
    used: float = Field(description="Share of the capacity of the fullest account that they are charged to.")
    created_by: str
    created_at: datetime

    @classmethod
    def of(cls, record: ExperimentRecord, **further: object) -> Self:
        """Convert from the domain."""
        experiment, account, run = record.experiment, record.account.account, record.run
        return cls(
            id=experiment.id,
            name=account.name,
            path=account.path,
            charging_mode=experiment.charging_mode,
            account=account.id,
            budget=account.parent_id,
            population=account.population_id,
            run=run and run.account_id,
            status=run and run.status,
            event=run and run.event,
            runs=record.runs,
            epsilon=record.epsilon,
            delta=record.delta,
            used=record.used,
            created_by=experiment.created_by,
            created_at=experiment.created_at,
            **further,
        )


class CreatedExperiment(Experiment):
    """A new sweep."""

    trials: int | None = Field(
        description="For a sweep that is charged as a whole: the random number of trials to run. It is returned "
        "once, with the charge, and must stay as secret as the trials that are not chosen. Null: each run is "
        "charged, or the sweep awaits approval."
    )


def sweep_refused(decision: Decision) -> StoredResponse:
    """Build the response to a sweep that does not fit."""
    return not_made(refusal_facts(decision), decision.binding_account_id, decision.binding_account_path, 1)
