"""What steps cost: computed once for each event, outside the writers' lock, then read from the ledger."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, fingerprint
from app.ledger.accounts import Account, PricedStep, StepEvent
from app.persistence.repositories import events
from app.persistence.repositories.events import PriceList

T = TypeVar("T")
Prices = dict[DpEvent, RdpCurve]
"""Curves that were computed for one request, under one population's relation."""


class UnpricedError(Exception):
    """A transaction needs curves that nobody has computed yet; it must not compute them while others wait.

    Args:
        account: under whose relation and grid.
        unpriced: the events.
    """

    def __init__(self, account: Account, unpriced: Iterable[DpEvent]) -> None:
        super().__init__("an event has no price yet")
        self.account = account
        self.unpriced = frozenset(unpriced)


def with_prices(work: Callable[[Prices], T]) -> T:
    """Do a unit of work that begins its own transaction, and again when a price was missing.

    Computing a curve takes milliseconds. The transaction that finds one missing is given up before it has changed
    anything, the curve is computed without the lock, and the work begins anew.

    Args:
        work: is given the curves computed so far.

    Returns:
        What the work returns.

    Raises:
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    prices: Prices = {}
    while True:
        try:
            return work(prices)
        except UnpricedError as missing:
            for event in missing.unpriced:
                prices[event] = missing.account.price(StepEvent(event, 1)).curve


def require_priced(account: Account, wanted: Iterable[DpEvent], prices: Prices) -> None:
    """Leave a transaction if an event that it will price was not computed before.

    Raises:
        UnpricedError: caught by `with_prices`.
    """
    unpriced = [event for event in wanted if event not in prices]
    if unpriced:
        raise UnpricedError(account, unpriced)


def price(
    tx: Connection, organisation_id: str, account: Account, steps: Sequence[StepEvent], prices: Prices
) -> list[PricedStep]:
    """Price step events by the ledger's price list, and append to it what it lacks.

    Args:
        tx: the caller's transaction.
        organisation_id: whose ledger.
        account: any account of the population; its relation and grid hold.
        steps: what is to be priced.
        prices: curves for events that the list may lack.

    Returns:
        The steps, in order.

    Raises:
        UnpricedError: neither the list nor `prices` has an event.
    """
    kept = PriceList(organisation_id, account.relation, account.grid_version)
    curves = events.find_curves(tx, kept, (step.event for step in steps))
    missing = {step.event for step in steps if fingerprint(step.event) not in curves}
    if missing:
        require_priced(account, missing, prices)
        added = {event: prices[event] for event in missing}
        events.add_curves(tx, kept, added)
        curves |= {fingerprint(event): curve for event, curve in added.items()}
    return [PricedStep(step, curves[fingerprint(step.event)]) for step in steps]


def preview(tx: Connection, organisation_id: str, account: Account, steps: Sequence[StepEvent]) -> list[PricedStep]:
    """As `price`, for a read: what the list lacks is computed now and not appended.

    Raises:
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    kept = PriceList(organisation_id, account.relation, account.grid_version)
    curves = events.find_curves(tx, kept, (step.event for step in steps))
    return [
        PricedStep(step, curves[fingerprint(step.event)]) if fingerprint(step.event) in curves else account.price(step)
        for step in steps
    ]
