"""Read model of the page of a population or budget, and whether a hypothetical run fits into it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from app.accounting.events import Gaussian, PoissonSampled
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.admission.admission import Refusal, admit
from app.ledger.admission.composition import exposed, trial_account
from app.ledger.errors import LedgerUnavailableError, NotFoundError
from app.ledger.fitting.fitting_noise import noise_that_fits
from app.ledger.pages import Page, PageRequest
from app.ledger.runs.decisions import DecisionFilter, DecisionOutcome, DecisionWithPath
from app.ledger.scheduling.account_status import AccountStatus
from app.ledger.step_events import StepEvent
from app.persistence.repositories import account_metadata, decisions, overview_queries
from app.persistence.repositories.overview_queries import RunOutline
from app.service.accounts.damaged_rows import read_tolerating_damage
from app.service.accounts.epsilons import read_epsilons
from app.service.accounts.lookup import AccountView, account_views, find_path_of
from app.service.accounts.tuning import tuned
from app.service.auth.request_context import RequestContext
from app.service.costing import cost_steps
from app.service.governance.block_schedules import ScheduleRecord, find_schedule
from app.service.queries.account_history import AccountHistory, AccountHistoryCache, ChildShare
from app.service.queries.account_status import (
    ancestors,
    with_burn_rate,
    with_epsilons,
    with_metadata,
    with_waiting_reservations,
)
from app.service.queries.account_status_cache import AccountStatusCache
from app.service.queries.budget_sharing import BudgetSharing, preview_or_reason, read_sharing
from app.service.queries.governance import CurrentLimit, current_limit
from app.service.queries.overview import AccountTree, trees_of
from app.service.queries.proposal_effects import AccountEffect, charge_effect
from app.service.queries.runs import partitions_of
from app.service.scheduling.what_if import WaitPreview

POINTS: Final = 200
BENEATH: Final = 60
"""Number of descendants shown, the most urgent ones."""

RUNS: Final = 25
REFUSALS: Final = 10

QUIET: Final = 0.3
"""Lower bound of the noise search; less noise costs more than any meaningful limit."""


@dataclass(frozen=True, slots=True)
class HypotheticalRun:
    """A hypothetical run of the Gaussian mechanism; a probability below 1 means Poisson sampling."""

    steps: int
    noise_multiplier: float
    sampling_probability: float

    @property
    def step(self) -> StepEvent:
        """The event that it would charge."""
        gaussian = Gaussian(self.noise_multiplier)
        sampled = self.sampling_probability < 1
        return StepEvent(PoissonSampled(self.sampling_probability, gaussian) if sampled else gaussian, self.steps)


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """Whether a hypothetical run fits into every account of its path.

    Args:
        binding: the account that leaves the fewest steps.
        accounts: those of the path that the caller may read, root first; roots are always readable.
        most_steps: the number of steps that fit.
        least_noise: the least noise with which all steps fit; None: no noise is enough.
    """

    fits: bool
    binding: Account
    accounts: tuple[AccountEffect, ...]
    most_steps: int
    least_noise: float | None


@dataclass(frozen=True, slots=True)
class Spender:
    """A child that was charged, and the epsilon of its charges; None if its row is damaged."""

    child: ChildShare
    epsilon: float | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class AccountDetail:
    """Contents of the page of a population or budget.

    Args:
        above: its ancestors, root first.
        spenders: the largest share first.
        limit: its limit, for the form that changes it.
        archived: path of the topmost archived account among it and those above it; None: nothing is archived.
        schedule: of its data blocks; None: its children are no disjoint parts.
        sharing: how it shares out its budget, and who waits for it.
        children: budgets directly under it, by path.
        answer: whether a hypothetical run fits; None: no such run was given, or its cost is unknown.
        preview: what would become of the run's reservation, or why it would be refused; None likewise, or runs do not
            charge the account itself.
    """

    view: AccountView
    above: tuple[AccountRecord, ...]
    tree: AccountTree
    history: AccountHistory
    spenders: tuple[Spender, ...]
    runs: Page[RunOutline]
    refusals: Sequence[DecisionWithPath]
    limit: CurrentLimit
    archived: str | None
    schedule: ScheduleRecord | None
    sharing: BudgetSharing
    children: tuple[AccountStatus, ...]
    answer: WhatIfResult | None
    preview: WaitPreview | str | None


def get_account_detail(
    context: RequestContext,
    statuses: AccountStatusCache,
    histories: AccountHistoryCache,
    account_id: str,
    after: str | None,
    plan: HypotheticalRun | None,
) -> AccountDetail:
    """Get the page of a population or budget from one snapshot.

    Its runs are listed behind the place `after`.

    Raises:
        LedgerUnavailableError: the row of the account or of an ancestor is damaged.
    """
    with context.read() as tx:
        path = find_path_of(tx, context, account_id)
        record = path[-1]
        if record.account.kind is AccountKind.RUN:
            raise NotFoundError(f"{account_id} is a run, and no population or budget.")
        [view] = account_views(tx, context, [record])
        hidden = account_metadata.archived_ids(tx, context.organisation_id, beside=record.account.id)
        everything = [each for each in statuses.read(tx, context, within=record.account.id) if each.id not in hidden]
        above = statuses.read_above(tx, context, record.account.id)
        shown = with_burn_rate(tx, context, _chosen(everything, record.account.id), above)
        shown = with_epsilons(tx, context, with_metadata(tx, context, shown))
        shown = with_waiting_reservations(tx, context, shown)
        archived = next(iter(account_metadata.archived_above(tx, context.organisation_id, record.account.id)), None)
        [tree] = trees_of([each._replace(archived=archived is not None) for each in shown], everything)
        if tree.status.limit is None:
            raise LedgerUnavailableError(
                f"The row of {record.account.path} is damaged: its numbers mean nothing; run `epsilon-ledger verify`."
            )
        history = histories.read_in(tx, context, record, POINTS)
        answer, preview = (None, None) if plan is None else what_if(tx, context, path, plan)
        children = sorted(
            (each for each in everything if each.parent_id == record.account.id), key=lambda each: each.path
        )
        refused = DecisionFilter(outcome=DecisionOutcome.REFUSED, within=record.account.id)
        return AccountDetail(
            view=view,
            above=tuple(path[:-1]),
            tree=tree,
            history=history,
            spenders=_spenders(tx, context, record.account, history),
            runs=overview_queries.newest_runs(tx, context.organisation_id, record.account.id, PageRequest(RUNS, after)),
            refusals=decisions.page(tx, context.organisation_id, refused, PageRequest(REFUSALS)).items,
            limit=current_limit(tx, context, path),
            archived=archived,
            schedule=None if record.account.partitions_per_unit is None else find_schedule(tx, context, path),
            sharing=read_sharing(tx, context, path),
            children=tuple(children),
            answer=answer,
            preview=preview,
        )


def _chosen(everything: list[AccountStatus], account_id: str) -> list[AccountStatus]:
    """Select the account and its most urgent descendants, with all accounts between them."""
    urgent = sorted(everything, key=lambda each: each.sort_key)[:BENEATH]
    ids = ancestors(everything, [account_id, *(each.id for each in urgent)])
    return [each for each in everything if each.id in ids]


def _spenders(
    tx: Connection, context: RequestContext, account: Account, history: AccountHistory
) -> tuple[Spender, ...]:
    children = {each.account_id: each for each in history.children if each.account_id is not None}

    assert account.limit is not None, "populations and budgets have limits"
    found, _ = read_tolerating_damage(tx, context.organisation_id, list(children), lambda record: record)
    delta = account.limit.shown_delta
    values = read_epsilons(tx, context.organisation_id, [(record, delta) for record in found.values()])
    known = {
        child_id: Spender(children[child_id], epsilon, record.updated_at)
        for (child_id, record), epsilon in zip(found.items(), values, strict=True)
    }
    return tuple(known.get(child_id, Spender(child, None, None)) for child_id, child in children.items())


def what_if(
    tx: Connection, context: RequestContext, path: list[AccountRecord], plan: HypotheticalRun
) -> tuple[WhatIfResult, WaitPreview | str | None]:
    """Evaluate a run under the last account of a path, and its plan."""
    accounts = tuple(each.account for each in path)
    answer = context.run_with_costs(lambda: _answer(tx, context, accounts, plan))
    return answer, context.run_with_costs(lambda: preview_or_reason(tx, context, path, plan.step))


def _answer(tx: Connection, context: RequestContext, path: Sequence[Account], plan: HypotheticalRun) -> WhatIfResult:
    # The registration of the run would tune the filters of which nothing is spent.
    touched = tuple([tuned(tx, context, account, [plan.step]) for account in _touched(tx, context, path)])
    within = _readable(context, path)
    steps = cost_steps(tx, context.organisation_id, path[0], [plan.step], context.costs)
    outcome = admit(touched, steps)
    refused = isinstance(outcome, Refusal)
    return WhatIfResult(
        fits=not refused,
        binding=outcome.binding,
        accounts=tuple(charge_effect(account, steps) for account in touched[:-1] if account.id in within),
        most_steps=outcome.max_steps_that_fit if isinstance(outcome, Refusal) else plan.steps + outcome.steps_remaining,
        least_noise=noise_that_fits(touched, [steps[0]._replace(step=_min_noise(plan, refused=refused))]),
    )


def _readable(context: RequestContext, path: Sequence[Account]) -> set[str]:
    """Get the accounts of a path that the caller may read: the scope, its descendants, roots."""
    ids = [account.id for account in path]
    reach = ids if context.principal.scope is None else ids[ids.index(context.principal.scope) :]
    return {*reach, *(account.id for account in path if account.kind is AccountKind.POPULATION)}


def _min_noise(plan: HypotheticalRun, *, refused: bool) -> StepEvent:
    """Choose where the noise search begins; a refused run needs more than its own."""
    return plan.step if refused else replace(plan, noise_multiplier=min(plan.noise_multiplier, QUIET)).step


def _touched(tx: Connection, context: RequestContext, path: Sequence[Account]) -> tuple[Account, ...]:
    """Get the accounts that a new run would charge; in a parallel account, a new partition."""
    if path[-1].partitions_per_unit is not None:
        path = [*path, trial_account(path, "part", AccountKind.BUDGET)]
    return exposed([*path, trial_account(path, "run")], partitions_of(tx, context, path))
