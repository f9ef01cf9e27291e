"""Accounts for tests of the rules."""

from collections.abc import Callable, Sequence

import pytest

from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger import admission
from app.ledger.accounts import Account, AccountKind, StepEvent, zero_curve
from app.ledger.filters import FilterKind, Limit

AccountMaker = Callable[..., Account]


def admit(path: Sequence[Account], steps: Sequence[StepEvent]) -> admission.Admission | admission.Refusal:
    """Admit step events at the prices that are computed now."""
    return admission.admit(path, [path[0].price(step) for step in steps])


def repetitions_left(path: Sequence[Account], event: DpEvent) -> tuple[int, Account]:
    """Count repetitions at the price that is computed now."""
    return admission.repetitions_left(path, path[0].price(StepEvent(event, 1)))


@pytest.fixture(scope="session")
def account() -> AccountMaker:
    """Make an account with a limit and nothing spent."""

    def make(
        epsilon: float = 1.0,
        delta: float = 1e-5,
        kind: FilterKind = FilterKind.ADAPTIVE,
        *,
        name: str = "p",
        limited: bool = True,
        planned: tuple[StepEvent, ...] = (),
    ) -> Account:
        return Account(
            id=f"bud_{name}",
            kind=AccountKind.BUDGET if limited else AccountKind.RUN,
            parent_id=None,
            population_id="pop_p",
            name=name,
            path=name,
            depth=1,
            relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            limit=Limit(epsilon, delta) if limited else None,
            filter=kind,
            planned=planned,
            weights=None,
            spent=zero_curve(),
            held=zero_curve(),
        )

    return make
