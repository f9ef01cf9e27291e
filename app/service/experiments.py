"""Experiments: declared sweeps, charged by run or as a whole."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from app.accounting.events import RepeatAndSelect
from app.accounting.formulas.repeat_and_select import number_of_runs
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError, PermissionDeniedError, RunStateConflictError, require_found
from app.ledger.experiments import ChargingMode, Experiment, ExperimentFilter
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.ledger.runs.decisions import Decision, DecisionOutcome
from app.ledger.runs.run import EndReason, Run, RunStatus, require_active, status_payload
from app.persistence.repositories import accounts, experiments, locks, runs
from app.service.accounts.create import open_budget
from app.service.accounts.epsilons import delta_of_run, read_epsilons
from app.service.accounts.lookup import find_parent, require_reach
from app.service.accounts.spec import AccountSpec
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.charging.groups import decide_command
from app.service.charging.ledger_state import LedgerState
from app.service.charging.loading import load_for
from app.service.charging.requests import StepCommand, StepRequest, StepResult
from app.service.charging.saving import save
from app.service.charging.unit_of_work import UnitOfWork
from app.service.ids import new_id
from app.service.runs.register import RunRegistration, insert_run

UNIFORM_BITS = 52


@dataclass(frozen=True, slots=True)
class ExperimentRecord:
    """An experiment with its costs.

    Args:
        account: the budget of its runs, or the run that pays for all trials.
        run: that run; None if each run pays for itself.
        runs: number of runs.
        epsilon: of all of them together, at `delta`.
        delta: of the limit that governs the account.
        used: share of the capacity of the fullest account that they are charged to.
    """

    experiment: Experiment
    account: AccountRecord
    run: Run | None
    runs: int
    epsilon: float
    delta: float
    used: float


@dataclass(frozen=True, slots=True)
class NewExperiment:
    """A new or newly charged experiment; `trials` is the drawn number of trials, if it was charged as a whole."""

    record: ExperimentRecord
    trials: int | None = None


@use_case(Permission.RUN_MANAGE)
def create_experiment(tx: Connection, context: RequestContext, parent: str, terms: AccountSpec) -> NewExperiment:
    """Create a budget for the runs of a sweep, each charged separately.

    The default limit is the parent's, which must not be composed in parallel. Errors are those of
    `create_budget`.
    """
    if context.principal.single_use:
        raise PermissionDeniedError("This key is for one run, and creates no experiment with several.")
    above = find_parent(tx, context, parent)
    if above.account.partitions_per_unit is not None:
        raise InvalidInputError(
            f"{above.account.path!r} is composed in parallel, and no attestation covers an experiment as one of "
            "its disjoint parts. Create it under one of them."
        )
    limit = terms.limit or above.account.limit
    view = open_budget(tx, context, above, replace(terms, limit=limit))
    return NewExperiment(_read(tx, context, _add(tx, context, view.record.account.id, ChargingMode.EACH_RUN)))


@use_case(Permission.RUN_MANAGE, Permission.STEP_AUTHORIZE)
def create_sweep(tx: Connection, context: RequestContext, sweep: RunRegistration) -> NewExperiment | Decision:
    """Charge a whole sweep and draw its number of trials.

    A sweep that needs approval is only registered, with None trials; `charge_sweep` charges it later. The number of
    trials is stored nowhere, except in the caller's response. A sweep that does not fit creates no run.

    Errors are those of `register_run` and `decide`.
    """
    assert isinstance(sweep.event, RepeatAndSelect), "its only step is the whole sweep"
    before = tx.begin_nested()
    run_id = insert_run(tx, context, sweep)
    assert isinstance(run_id, str), "only a reservation is refused"
    experiment = _add(tx, context, run_id, ChargingMode.REPEAT_AND_SELECT)
    work = load_for(tx, context, run_id, _whole_charge(run_id))
    if work.run(run_id).status is RunStatus.PENDING:
        # A caller who knew the number before the charge could discard sweeps until it suits them.
        before.commit()
        return NewExperiment(_read(tx, context, experiment))
    refused = _charge(tx, work, context, run_id)
    if refused is not None:
        before.rollback()
        budget = find_parent(tx, context, sweep.budgets[0]).account.id
        payload = {"count": 1, "binding_account": refused.binding_account_id}
        payload |= json.loads(refused.refusal_details or "{}")
        context.record(tx, AuditAction.EXPERIMENT_REFUSED, budget, after=payload)
        return refused
    before.commit()
    return NewExperiment(_read(tx, context, experiment), _draw(sweep.event))


@use_case(Permission.STEP_AUTHORIZE)
def charge_sweep(tx: Connection, context: RequestContext, experiment_id: str) -> NewExperiment | Decision:
    """Charge an approved sweep and draw its number of trials.

    Raises:
        InvalidInputError: its runs are charged separately.
        RunStateConflictError: it still waits, has ended, or its run has taken a step.
        Also those of `decide`.
    """
    found = _found(tx, context, experiment_id)
    if found.charging_mode is not ChargingMode.REPEAT_AND_SELECT:
        raise InvalidInputError("Each run of this experiment is charged by itself; there is nothing to charge now.")
    work = load_for(tx, context, found.account_id, _whole_charge(found.account_id))
    run = work.run(found.account_id)
    if run.next_step or run.attempt > 1 or not isinstance(run.event, RepeatAndSelect):
        raise RunStateConflictError(
            "The sweep was charged before, and its number of trials was returned once. Create another experiment "
            "if the number is lost.",
            run_status=str(run.status),
        )
    require_active(run)
    refused = _charge(tx, work, context, run.account_id)
    return refused or NewExperiment(_read(tx, context, found), _draw(run.event))


def get_experiment(context: RequestContext, experiment_id: str) -> ExperimentRecord:
    """Get an experiment."""
    with context.read() as tx:
        return _read(tx, context, _found(tx, context, experiment_id))


def list_experiments(context: RequestContext, wanted: ExperimentFilter, page: PageRequest) -> Page[ExperimentRecord]:
    """List experiments in the caller's scope; `wanted.budget` is an id or a path."""
    with context.read() as tx:
        under = None if wanted.budget is None else find_parent(tx, context, wanted.budget).account.id
        found = experiments.page(tx, context.organisation_id, [context.principal.scope, under], page)
        return found.map(lambda records: read_all(tx, context, records))


def _add(tx: Connection, context: RequestContext, account_id: str, charged: ChargingMode) -> Experiment:
    newest = experiments.newest_id(tx, context.organisation_id, "exp")
    experiment = Experiment(
        new_id("exp", context.now, newest), account_id, charged, context.principal.actor, created_at=context.now
    )
    experiments.add(tx, context.organisation_id, experiment)
    context.record(tx, AuditAction.EXPERIMENT_CREATED, experiment.id, after=experiment.facts())
    return experiment


def _found(tx: Connection, context: RequestContext, experiment_id: str) -> Experiment:
    found = require_found(experiments.find(tx, context.organisation_id, experiment_id), "experiment", experiment_id)
    require_reach(tx, context, found.account_id)
    return found


def _draw(event: RepeatAndSelect) -> int:
    """Draw the number of trials from the charged distribution."""
    return number_of_runs(event.mean, event.shape, (secrets.randbits(UNIFORM_BITS) + 0.5) / 2**UNIFORM_BITS)


def _whole_charge(run_id: str) -> StepRequest:
    """Build the only step of a sweep's run."""
    return StepRequest(run_id, ((None, 1),), first_step=0, idempotency_key=None)


def _charge(tx: Connection, work: UnitOfWork, context: RequestContext, run_id: str) -> Decision | None:
    """Charge a sweep's run and complete it; return a refusal, if any."""
    command = StepCommand(context, _whole_charge(run_id), charges_sweep=True)
    result = decide_command(tx, LedgerState(), work, command)
    if not isinstance(result, StepResult):
        raise result
    decision = result.decision
    if decision.outcome is DecisionOutcome.REFUSED:
        save(tx, work)
        return decision
    charged = work.run(run_id)
    after = charged.ended(RunStatus.COMPLETED, EndReason.FINISHED, context.now)
    work.move(after)
    save(tx, work)
    context.record(tx, AuditAction.RUN_COMPLETED, run_id, status_payload(charged), status_payload(after))
    return None


def _read(tx: Connection, context: RequestContext, experiment: Experiment) -> ExperimentRecord:
    [record] = read_all(tx, context, [experiment])
    return record


def read_all(tx: Connection, context: RequestContext, found: Sequence[Experiment]) -> list[ExperimentRecord]:
    """Read experiments with their costs, in a constant number of statements."""
    whose = context.organisation_id
    paying = [each.account_id for each in found if each.charging_mode is ChargingMode.REPEAT_AND_SELECT]
    paths = locks.paths(tx, whose, paying)
    wanted = {each.account_id for each in found} | {at for path in paths.values() for at in path}
    records = {each.account.id: each for each in accounts.read_many(tx, whose, sorted(wanted))}
    kept = {run.account_id: run for run in runs.get_many(tx, whose, paying)}
    counts = experiments.runs_of(tx, whose, [each.account_id for each in found])
    read = []
    charged = [[records[at] for at in paths.get(each.account_id, (each.account_id,))] for each in found]
    deltas = [delta_of_run([record.account for record in path]) for path in charged]
    epsilons = read_epsilons(tx, whose, [(path[-1], delta) for path, delta in zip(charged, deltas, strict=True)])
    for each, path, epsilon, delta in zip(found, charged, epsilons, deltas, strict=True):
        read.append(
            ExperimentRecord(
                each,
                records[each.account_id],
                kept.get(each.account_id),
                1 if each.account_id in kept else counts.get(each.account_id, 0),
                epsilon,
                delta,
                max(record.account.used() for record in path),
            )
        )
    return read
