"""Accounts for tests of the rules."""

from collections.abc import Callable

import pytest

from app.accounting.events import NeighboringRelation
from app.ledger.accounts import Account, AccountKind, StepEvent, zero_curve
from app.ledger.filters import FilterKind, Limit

AccountMaker = Callable[..., Account]


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
