"""What steps cost: computed once for each event, outside the writers' lock, then read from the ledger."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation, fingerprint
from app.ledger.accounts import Account, PricedStep, StepEvent
from app.ledger.noise import noise_that_fits
from app.persistence.repositories import events
from app.persistence.repositories.events import PriceList

T = TypeVar("T")
MAX_SEARCHES = 3
"""How often a busy account may change under a search before the refusal goes without its result."""


@dataclass
class Prepared:
    """What was computed for one request, outside the writers' lock.

    Args:
        prices: curves of events, by what decides them besides: a relation, and a version of the grid.
        noises: the noise that fits, by the state of the accounts and the charge.
        searches: how often noise that fits was searched.
    """

    prices: dict[tuple[NeighboringRelation, int, DpEvent], RdpCurve] = field(default_factory=dict)
    noises: dict[Hashable, float | None] = field(default_factory=dict)
    searches: int = 0

    def curve(self, account: Account, event: DpEvent) -> RdpCurve:
        """What was computed of an event under an account's rules."""
        return self.prices[account.relation, account.grid_version, event]

    def require(self, account: Account, wanted: Iterable[DpEvent]) -> None:
        """Leave the transaction if an event that it will price was not computed before.

        Raises:
            UnpreparedError: caught by `prepared`.
        """
        rule = (account.relation, account.grid_version)
        unpriced = [event for event in wanted if (*rule, event) not in self.prices]
        if unpriced:

            def compute() -> None:
                for event in unpriced:
                    self.prices[*rule, event] = account.price(StepEvent(event, 1)).curve

            raise UnpreparedError(compute)

    def noise_that_fits(self, path: Sequence[Account], steps: Sequence[PricedStep]) -> float | None:
        """As in the ledger's admission, but searched outside the transaction.

        Returns:
            As there; None also where the accounts changed under every search.

        Raises:
            UnpreparedError: caught by `prepared`.
        """
        if len(steps) > 1:
            return None
        state = (tuple((account.id, account.version) for account in path), steps[0].step)
        if state not in self.noises:
            if self.searches >= MAX_SEARCHES:
                return None

            def compute() -> None:
                self.searches += 1
                self.noises[state] = noise_that_fits(path, steps)

            raise UnpreparedError(compute)
        return self.noises[state]


class UnpreparedError(Exception):
    """A transaction needs something that takes milliseconds to compute; it must not compute it while others wait.

    Args:
        compute: what is to be done before the work is begun anew.
    """

    def __init__(self, compute: Callable[[], None]) -> None:
        super().__init__("something must be computed first")
        self.compute = compute


def prepared(work: Callable[[Prepared], T]) -> T:
    """Do a unit of work that begins its own transaction, and again when something was not computed yet.

    The transaction that finds it missing is given up before it has changed anything, the computing is done without
    the lock, and the work begins anew.

    Args:
        work: is given what was computed so far.

    Returns:
        What the work returns.

    Raises:
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    ready = Prepared()
    while True:
        try:
            return work(ready)
        except UnpreparedError as missing:
            missing.compute()


def quote(
    tx: Connection, organisation_id: str, account: Account, steps: Sequence[StepEvent], ready: Prepared
) -> list[PricedStep]:
    """Price step events by the ledger's price list, or by what was computed for it.

    Args:
        tx: the caller's transaction.
        organisation_id: whose ledger.
        account: any account of the population; its relation and grid hold.
        steps: what is to be priced.
        ready: has the curves that the list may lack.

    Returns:
        The steps, in order.

    Raises:
        UnpreparedError: neither the list nor `ready` has an event.
    """
    kept = PriceList(organisation_id, account.relation, account.grid_version)
    curves = events.find_curves(tx, kept, (fingerprint(step.event) for step in steps))
    missing = {step.event for step in steps if fingerprint(step.event) not in curves}
    ready.require(account, missing)
    curves |= {fingerprint(event): ready.curve(account, event) for event in missing}
    return [PricedStep(step, curves[fingerprint(step.event)]) for step in steps]
