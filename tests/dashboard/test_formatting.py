"""Numbers as pages show them: never a smaller loss than there is, and no share that is empty or full unless it is."""

from math import inf

import pytest

from app.dashboard.formatting import epsilon, limit, percent, severity_label
from app.ledger.filter.limits import Limit
from app.ledger.scheduling.availability import Available
from tests.statuses import status_at


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        *((0.0, "0.0 %"), (1e-9, "under 0.1 %"), (0.00049, "under 0.1 %"), (0.0005, "0.1 %"), (2 / 6, "33.3 %")),
        *((0.3335, "33.4 %"), (0.5, "50.0 %"), (0.9994, "99.9 %"), (0.99999, "99.9 %"), (1.0, "100.0 %")),
        *((1.0001, "100.1 %"), (1.5, "150.0 %"), (9.99, "999.0 %"), (11.0, "over 999 %"), (inf, "over 999 %")),
    ],
)
def test_share_is_rounded_to_a_tenth_and_full_or_empty_only_where_it_is(share: float, shown: str) -> None:
    assert " ".join(percent(share).split()) == shown


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        *((0.0, "0"), (0.000123, "0.0001230"), (0.36561, "0.3657"), (1.23031, "1.231"), (34.2, "34.20")),
        *((2214.69, "2 215"), (inf, "∞"), (None, "∞")),
    ],
)
def test_epsilon_has_four_digits_and_is_rounded_up(loss: float | None, shown: str) -> None:
    assert " ".join(epsilon(loss).split()) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(3.0, "3"), (0.000123, "0.000123"), (7.0000004, "7.0000004"), (1500.5, "1 500.5"), (10_000.0, "10 000")],
)
def test_limit_is_exact_with_its_thousands_apart(number: float, shown: str) -> None:
    assert " ".join(limit(number).split()) == shown


@pytest.mark.parametrize(
    ("used", "reserved", "above", "shown"),
    [
        *((0.0, 0.0, 1.0, "OK"), (0.6, 0.0, 1.0, "half used"), (0.0, 0.6, 1.0, "half reserved")),
        *((0.0, 0.0, 0.4, "limited"), (0.0, 0.0, 0.01, "blocked"), (0.85, 0.0, 1.0, "low")),
    ],
)
def test_untouched_budget_is_not_half_used(used: float, reserved: float, above: float, shown: str) -> None:
    taken = used + reserved
    least = min((1 - taken, "p/b"), (above, "p"))
    status = status_at(
        "p/b",
        limit=Limit(3.0, 1e-5),
        used=used,
        used_including_reserved=taken,
        remaining=1 - taken,
        available=Available(least[0], least[1], least[1]),
    )
    assert severity_label(status) == shown
