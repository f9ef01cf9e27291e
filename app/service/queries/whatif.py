"""What a further run would do to an account and to all above it: decided by the rule of admission, and not recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection

from app.accounting.errors import UnsupportedEventError
from app.accounting.events import Gaussian, PoissonSampled
from app.ledger.accounts import Account, AccountKind, PricedStep, StepEvent, zero_curve
from app.ledger.admission import Refusal, admit
from app.ledger.composition import exposed
from app.ledger.filters import FilterKind
from app.ledger.noise_search import noise_that_fits
from app.persistence.repositories import accounts
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts, cost_steps, run_with_costs

QUIET: Final = 0.3
"""Less noise is not looked for: it costs more than any limit that means something."""


@dataclass(frozen=True, slots=True)
class HypotheticalRun:
    """A run that somebody thinks about.

    Args:
        steps: in [1, 1e9].
        noise_multiplier: of the Gaussian mechanism.
        sampling_probability: of Poisson sampling, in (0, 1]; 1: all data in each step.
    """

    steps: int
    noise_multiplier: float
    sampling_probability: float

    @property
    def step(self) -> StepEvent:
        """What it would ask for."""
        gaussian = Gaussian(self.noise_multiplier)
        sampled = self.sampling_probability < 1
        return StepEvent(PoissonSampled(self.sampling_probability, gaussian) if sampled else gaussian, self.steps)


@dataclass(frozen=True, slots=True)
class ProjectedAccount:
    """An account with a further run.

    Args:
        account: as it stands.
        epsilon: spent, by its filter.
        epsilon_with_all: with what is held, and with the further run.
    """

    account: Account
    epsilon: float
    epsilon_with_all: float

    @property
    def left(self) -> float:
        """Epsilon that would still be free; at least 0."""
        assert self.account.limit is not None, "populations and budgets have limits"
        return max(0.0, self.account.limit.epsilon - self.epsilon_with_all)


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """Whether a further run fits.

    Args:
        fits: now, into every account of the path.
        binding: the account that leaves the fewest of its steps.
        accounts: the path, root first, as far as the caller may read it; the root itself always, as any account tells.
        most_steps: how many of its steps fit, at the most.
        least_noise: with how little noise all of its steps fit; None: no noise is enough.
    """

    fits: bool
    binding: Account
    accounts: tuple[ProjectedAccount, ...]
    most_steps: int
    least_noise: float | None


def what_if(
    tx: Connection, call: RequestContext, path: Sequence[Account], plan: HypotheticalRun
) -> WhatIfResult | None:
    """Ask whether a further run beneath an account would fit, if it were asked for at once.

    Args:
        tx: a reader's transaction.
        call: who asks.
        path: the accounts above a population or a budget, root first, and itself.
        plan: the run.

    Returns:
        None: nothing is proven of such a run under the population's relation.
    """
    try:
        return run_with_costs(call.organisation_id, lambda ready: _answer(tx, call, path, plan, ready))
    except UnsupportedEventError:
        return None


def _answer(
    tx: Connection, call: RequestContext, path: Sequence[Account], plan: HypotheticalRun, ready: PrecomputedCosts
) -> WhatIfResult:
    touched, within = _touched(tx, call, path), _readable(call, path)
    steps = cost_steps(tx, call.organisation_id, path[0], [plan.step], ready)
    outcome = admit(touched, steps, lambda *_: None)
    refused = isinstance(outcome, Refusal)
    return WhatIfResult(
        fits=not refused,
        binding=outcome.binding,
        accounts=tuple(_afterwards(account, steps) for account in touched[:-1] if account.id in within),
        most_steps=outcome.max_count_that_fits
        if isinstance(outcome, Refusal)
        else plan.steps + outcome.steps_remaining,
        least_noise=noise_that_fits(touched, [replace(steps[0], step=_quietest(plan, refused=refused))]),
    )


def _readable(call: RequestContext, path: Sequence[Account]) -> set[str]:
    """Those of a path that the caller may read: their scope, what lies beneath it, and what is told of every root."""
    ids = [account.id for account in path]
    reach = ids if call.principal.scope is None else ids[ids.index(call.principal.scope) :]
    return {*reach, *(account.id for account in path if account.kind is AccountKind.POPULATION)}


def _quietest(plan: HypotheticalRun, *, refused: bool) -> StepEvent:
    """Where the search for the least noise begins: what was refused needs more than its own."""
    return plan.step if refused else replace(plan, noise_multiplier=min(plan.noise_multiplier, QUIET)).step


def _touched(tx: Connection, call: RequestContext, path: Sequence[Account]) -> tuple[Account, ...]:
    """What the charges of a new run beneath the last account would touch; in a parallel account, it is a new part."""
    nothing = zero_curve(path[-1].grid_version)
    run = replace(
        path[-1],
        id="run",
        kind=AccountKind.RUN,
        parent_id=path[-1].id,
        limit=None,
        filter=FilterKind.ADAPTIVE,
        planned=(),
        weights=None,
        spent=nothing,
        held=nothing,
        partitions_per_unit=None,
    )
    if path[-1].partitions_per_unit is not None:
        part = replace(run, id="part", kind=AccountKind.BUDGET)
        return _exposed(tx, call, [*path, part, replace(run, parent_id="part")])
    return _exposed(tx, call, [*path, run])


def _exposed(tx: Connection, call: RequestContext, path: Sequence[Account]) -> tuple[Account, ...]:
    composed = [account.id for account in path if account.partitions_per_unit is not None]
    beside = accounts.children(tx, call.organisation_id, composed) if composed else []
    return exposed(path, [part.account for part in beside])


def _afterwards(account: Account, steps: list[PricedStep]) -> ProjectedAccount:
    ready = account.prepared_for(steps)
    growth = ready.grown_by(steps[0].cost)
    return ProjectedAccount(account, account.epsilon(), ready.epsilon(ready.spent + ready.held + growth))
