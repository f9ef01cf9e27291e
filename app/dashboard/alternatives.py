"""The alternatives to a refused request, for the pages of a run and of a decision."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from app.api.schemas.refusals import alternative_sentences, refusal_facts
from app.ledger.accounts.account import Account
from app.ledger.admission.alternatives import AlternativeType
from app.ledger.filter.limits import Limit
from app.ledger.governance.limit_changes import is_raised
from app.ledger.runs.decisions import Decision
from app.service.queries.outdated_alternatives import ChangedLimit


@dataclass(frozen=True, slots=True)
class Advice:
    """The alternatives as sentences, the limits that would have to be raised, and those that were `changed` since."""

    texts: Sequence[str]
    limits: Sequence[dict[str, Any]]
    changed: Sequence[ChangedLimit]

    @classmethod
    def of(cls, decision: Decision | None, changed: Sequence[ChangedLimit]) -> Self | None:
        """Get the alternatives of a refusal; None for any other decision."""
        if decision is None or decision.refusal_details is None:
            return None
        facts = refusal_facts(decision)
        raised = (each["limits"] for each in facts["alternatives"] if each["type"] == AlternativeType.HIGHER_LIMIT)
        texts = alternative_sentences(facts, stated=0) or ["No alternative would let the training finish."]
        return cls(texts, next(raised, []), changed)

    def requestable(self, accounts: Sequence[Account], waiting: Collection[str], *, ended: bool) -> Self:
        """Copy with the limits that may be requested now.

        Left out are those of accounts that are `waiting` for the approval of another one, or have reached it meanwhile,
        and the run's own if it has ended.
        """
        asked = [each for each in (accounts[:-1] if ended else accounts) if each.id not in waiting]
        present = {each.id: each.limit for each in asked if each.limit is not None}
        limits = [
            each
            for each in self.limits
            if each["account"] in present and is_raised(present[each["account"]], Limit.of(each))
        ]
        return replace(self, limits=limits)
