"""What a reservation lacks, in shares of the capacity of the accounts that do not hold it."""

from fractions import Fraction
from math import inf

import pytest

from app.ledger.scheduling.waiting_reasons import Shortage, WaitingReason, shortages
from tests.ledger.scheduling.blocks import NOW, Units, block, flat, open_ledgers, unlocked, waiting, with_loss

CAPACITY = flat(100)


def lacking(cost: Units, spent: Units, held: Units, part: Fraction = Fraction(1)) -> list[Shortage]:
    """What a reservation lacks under a budget of which a part is unlocked."""
    budget = with_loss(block("budget", CAPACITY), spent, held)
    asked = waiting("plan", ["budget"], cost)
    withholdings = {"budget": unlocked(part)} if part < 1 else None
    return shortages(asked, open_ledgers([budget], [asked], withholdings), NOW)


@pytest.mark.parametrize(
    ("cost", "spent", "held", "part", "reason"),
    [
        (flat(40), flat(70), flat(0), Fraction(1), WaitingReason.LIMIT),
        (flat(40), flat(20), flat(50), Fraction(1), WaitingReason.RESERVED),
        (flat(40), flat(20), flat(0), Fraction(1, 2), WaitingReason.LOCKED),
        # The first order holds the least share of both, though the reservation takes most of another one.
        ((40, 90, 90, 0), (70, 90, 90, 0), flat(0), Fraction(1), WaitingReason.LIMIT),
    ],
)
def test_shortage_has_shares_of_the_capacity(
    cost: Units, spent: Units, held: Units, part: Fraction, reason: WaitingReason
) -> None:
    [found] = lacking(cost, spent, held, part)
    assert (found.account_id, found.reason) == ("budget", reason)
    assert [found.requested, found.available] == pytest.approx([0.4, 0.3])


def test_reservation_that_fits_lacks_nothing() -> None:
    assert lacking(flat(30), flat(20), flat(50)) == []


def test_loss_that_no_order_bounds_is_infinite() -> None:
    [found] = lacking(flat(2**63 - 1), flat(20), flat(0))
    assert [found.requested, found.available] == pytest.approx([inf, 0.8])
