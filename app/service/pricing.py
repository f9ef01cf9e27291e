"""What steps cost: computed once for each event, then read from the ledger."""

from collections.abc import Sequence

from sqlalchemy import Connection

from app.accounting.events import fingerprint
from app.ledger.accounts import Account, PricedStep, StepEvent
from app.persistence.repositories import events
from app.persistence.repositories.events import PriceList


def price(
    tx: Connection, organisation_id: str, account: Account, steps: Sequence[StepEvent], *, keep: bool
) -> list[PricedStep]:
    """Price step events under an account's relation and grid.

    Args:
        tx: the caller's transaction.
        organisation_id: whose ledger.
        account: any account of the population.
        steps: what is to be priced.
        keep: store prices that are not in the ledger yet; a read leaves them computed.

    Returns:
        The steps, in order.

    Raises:
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    prices = PriceList(organisation_id, account.relation, account.grid_version)
    curves = events.find_curves(tx, prices, (step.event for step in steps))
    missing = {step.event: account.price(step).curve for step in steps if fingerprint(step.event) not in curves}
    if missing and keep:
        events.add_curves(tx, prices, missing)
    computed = {fingerprint(event): curve for event, curve in missing.items()}
    return [PricedStep(step, (curves | computed)[fingerprint(step.event)]) for step in steps]
