"""The lineage of a run on its statement's page: in a sentence, and as a part of the annex."""

from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Final

from app.api.html_parts import bullets, heading, paragraph, rows
from app.ledger.wording import counted, format_exact, joined

MOST_ROWS: Final = 100
"""Runs on the page; the signed document has all."""

_FOUR: Final = Context(prec=4, rounding=ROUND_CEILING)


def lineage_in_words(lineage: Mapping[str, Any]) -> str:
    """Say what a run starts from, and what its model reveals with that."""
    if not (lineage["runs"] or lineage["models"]):
        if lineage["starts_from"] is None:
            return "It was not declared what this run starts from."
        return "This run starts from nothing that was trained before, as its trainer declared."
    found = ((len(lineage["runs"]), "run"), (len(lineage["models"]), "outside model"))
    origins = joined(counted(number, noun) for number, noun in found if number)
    totals = joined(
        f"{_epsilon(each)} about one {each['privacy_unit']} of {each['name']}" for each in lineage["totals"]
    )
    return f"This run starts from {origins}, as trainers declared. With all its runs, the model reveals {totals}."


def lineage_section(lineage: Mapping[str, Any]) -> list[str]:
    """Render what a run starts from, and the totals of its lineage."""
    totals = [(each["name"], each["runs"], _epsilon(each), f"one {each['privacy_unit']}") for each in lineage["totals"]]
    runs = [
        (each["generation"], each["title"] or each["id"], each["status"], _epsilon(each))
        for each in lineage["runs"][:MOST_ROWS]
    ]
    models = [(each["name"], each["sha256"], ", ".join(each["start_of"])) for each in lineage["models"]]
    parts = [
        heading("What the released model reveals, with its lineage", 3),
        paragraph(lineage_in_words(lineage)),
        rows(("Population", "Runs", "Total of the lineage", "About"), totals),
        bullets(lineage["notes"]),
    ]
    if runs:
        parts.append(rows(("Generation", "Run that it starts from", "Status", "Its own charges"), runs))
    left_out = len(lineage["runs"]) - len(runs)
    if left_out:
        parts.append(paragraph(f"{left_out:,} more runs are in the signed document."))
    if models:
        parts.append(rows(("Outside model", "sha256", "Start of"), models))
    return parts


def _epsilon(facts: Mapping[str, Any]) -> str:
    """Write an epsilon at its delta, rounded up to four digits."""
    value = facts["epsilon"]
    if value is None:
        return "not composed"
    if value == "Infinity":
        return "unbounded"
    shown = _FOUR.create_decimal(Decimal(value)).normalize()
    return f"epsilon {shown:f} at delta {format_exact(facts['delta'])}"
