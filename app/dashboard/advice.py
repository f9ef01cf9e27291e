"""The alternatives to a refused request, for the pages of a run and of a decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from app.api.schemas.refusals import alternative_sentences, refusal_facts
from app.ledger.alternatives import AlternativeType
from app.ledger.decisions import Decision


@dataclass(frozen=True, slots=True)
class Advice:
    """The alternatives as sentences, and the limits that would have to be raised."""

    texts: Sequence[str]
    limits: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, decision: Decision | None) -> Self | None:
        """Get the alternatives of a refusal; None for any other decision."""
        if decision is None or decision.refusal_details is None:
            return None
        facts = refusal_facts(decision)
        raised = (each["limits"] for each in facts["alternatives"] if each["type"] == AlternativeType.HIGHER_LIMIT)
        texts = alternative_sentences(facts) or ["No alternative would let the training finish."]
        return cls(texts, next(raised, []))
