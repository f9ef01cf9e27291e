"""Numbers and names of a statement as people read them."""

from collections.abc import Mapping
from datetime import datetime
from decimal import ROUND_CEILING, Context, Decimal
from math import ceil
from typing import Any, Final

from app.ledger.accounts.metadata import title_of
from app.ledger.filter.limits import Limit
from app.service.audit.plain_claims import day_text

_FOUR: Final = Context(prec=4, rounding=ROUND_CEILING)
_MILLE: Final = 1000


def day(moment: str) -> str:
    """Write the day of a time: "3 December 2026"."""
    return day_text(datetime.fromisoformat(moment))


def limit(facts: Mapping[str, Any]) -> str:
    """Write a limit."""
    return str(Limit.of(facts))


def epsilon(facts: Mapping[str, Any]) -> str:
    """Write an epsilon, rounded up to four digits."""
    value = facts["epsilon"]
    return (
        "an unbounded epsilon"
        if value == "Infinity"
        else f"epsilon {_FOUR.create_decimal(Decimal(value)).normalize():f}"
    )


def percent(share: float) -> str:
    """Write a share in percent, rounded up to a tenth."""
    return f"{ceil(share * _MILLE - 1e-9) / 10:g} %"


def title(facts: Mapping[str, Any]) -> str:
    """Write the title of a run or a population, which tells apart runs of one path."""
    return title_of(facts["path"], facts.get("number", 1))


def named(facts: Mapping[str, Any]) -> str:
    """Write the title with the display name, if there is one."""
    shown = facts["display_name"]
    return title(facts) if shown is None else f"{shown} ({title(facts)})"
