"""The lineage of a run in its statement: what it starts from, and what the released model reveals by all of it."""

from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.errors import AccountQuarantinedError
from app.ledger.runs.origins import Origins
from app.ledger.runs.run import Run
from app.ledger.wording import counted
from app.service.auth.request_context import RequestContext
from app.service.json_values import json_finite
from app.service.queries.lineage import MOST_ANCESTORS, Ancestor, Lineage, LineageTotal, read_lineage
from app.service.queries.runs import Path

REVEALS: Final = (
    "A released model reveals what its own run added, and what the runs revealed that it started from. The totals of "
    "the lineage compose the charges of all these runs, each once, as for releases that were fixed in advance."
)
CONDITION: Final = (
    "Trainers declare what a run starts from, and the ledger does not check it. The totals are of the runs that were "
    "declared; the limit of the population holds for all runs on its people."
)
UNDECLARED: Final = (
    "Not declared by {runs} of this lineage: what they start from is unknown, and is in no total of the lineage."
)
MODELS: Final = (
    "The ledger does not know what the outside models cost the people whose data they were trained on. Their part is "
    "in no total."
)
SEVERAL: Final = "There is one total for each population: somebody who is in several of them has the losses of all."
TOO_LONG: Final = (
    f"The lineage has more than {MOST_ANCESTORS:,} runs, of which as many are listed, and no total was composed."
)


def lineage_facts(tx: Connection, context: RequestContext, run: Run, path: Path) -> dict[str, Any]:
    """Describe the lineage of a run.

    Raises:
        AccountQuarantinedError: a run that it starts from is quarantined.
    """
    lineage = read_lineage(tx, context, run, path)
    _require_proven(lineage)
    return {
        "starts_from": _origins(lineage.starts_from),
        "runs": [_run(each) for each in lineage.ancestors],
        "models": [asdict(model) | {"start_of": list(runs)} for model, runs in lineage.models.items()],
        "totals": [_total(each) for each in lineage.totals],
        "complete": lineage.is_complete,
        "notes": _notes(lineage),
    }


def _notes(lineage: Lineage) -> list[str]:
    """State what the totals say, and what they leave out."""
    runs = counted(lineage.undeclared, "run")
    found = {
        REVEALS: True,
        SEVERAL: len(lineage.totals) > 1,
        CONDITION: True,
        UNDECLARED.format(runs=runs): lineage.undeclared > 0,
        MODELS: bool(lineage.models),
        TOO_LONG: not lineage.is_complete,
    }
    return [note for note, applies in found.items() if applies]


def _origins(origins: Origins | None) -> list[dict[str, str]] | None:
    return None if origins is None else [asdict(each) for each in origins]


def _run(ancestor: Ancestor) -> dict[str, Any]:
    return {
        "id": ancestor.run,
        "title": ancestor.title,
        "status": ancestor.status,
        "generation": ancestor.generation,
        **json_finite(epsilon=ancestor.epsilon),
        "delta": ancestor.delta,
        "starts_from": _origins(ancestor.starts_from),
    }


def _total(total: LineageTotal) -> dict[str, Any]:
    people = total.population.population
    assert people is not None, "it is a population"
    return {
        "population": total.population.account.id,
        "name": total.population.account.name,
        "privacy_unit": people.privacy_unit,
        "runs": total.runs,
        **({"epsilon": None} if total.epsilon is None else json_finite(epsilon=total.epsilon)),
        "delta": total.delta,
    }


def _require_proven(lineage: Lineage) -> None:
    for each in lineage.ancestors:
        if each.quarantined:
            raise AccountQuarantinedError(
                f"No statement is made about a run that starts from {each.title or each.run}: verification found that "
                "the balance of that one does not follow from its charges. Two persons lift that: "
                f"POST /v1/accounts/{each.run}/quarantine/lift.",
                account=each.run,
            )
