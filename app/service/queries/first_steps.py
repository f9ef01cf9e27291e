"""Read model of the first steps in a new organisation, from its first population to its first training step."""

from dataclasses import dataclass

from app.ledger.accounts.account import AccountKind
from app.ledger.pages import PageRequest
from app.ledger.permissions import Permission, Role
from app.ledger.scheduling.account_status import AccountStatus
from app.persistence.repositories import api_keys, overview_queries
from app.persistence.repositories.overview_queries import RunOutline
from app.service.auth.request_context import RequestContext
from app.service.queries.account_status_cache import AccountStatusCache

_KEYS = 50
"""Newest keys among which one of a trainer is looked for."""


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """How far an organisation with at most one run has come.

    Args:
        population: the oldest one; None: there is none yet. Likewise `budget`, with its population.
        has_trainer_key: whether there is a valid key of a trainer.
        run: the only run; None: none is registered yet.
    """

    population: AccountStatus | None
    budget: AccountStatus | None
    has_trainer_key: bool
    run: RunOutline | None

    @property
    def started(self) -> bool:
        """Whether the run has taken its first step."""
        return self.run is not None and self.run.next_step > 0


def read_first_steps(context: RequestContext, statuses: AccountStatusCache) -> FirstSteps | None:
    """Get how far a new organisation has come; None once it has two runs."""
    with context.read(Permission.ACCOUNT_MANAGE, whole_organisation=True) as tx:
        if overview_queries.count_runs(tx, context.organisation_id, most=2) > 1:
            return None
        newest = overview_queries.newest_runs(tx, context.organisation_id, None, PageRequest(1)).items
        found = statuses.read(tx, context)
        keys = api_keys.page(tx, context.organisation_id, None, PageRequest(_KEYS)).items
    budget = _oldest(found, AccountKind.BUDGET)
    population = _oldest(found, AccountKind.POPULATION)
    if budget is not None:
        population = next((each for each in found if each.id == budget.population_id), population)
    trains = any(key.role == Role.TRAINER and key.invalid_reason(context.now) is None for key in keys)
    return FirstSteps(population, budget, trains, newest[0] if newest else None)


def _oldest(found: list[AccountStatus], kind: AccountKind) -> AccountStatus | None:
    """Find the oldest undamaged account of a kind."""
    of_kind = [
        (each.created_at, each.path, each) for each in found if each.kind is kind and each.created_at is not None
    ]
    return min(of_kind)[-1] if of_kind else None
