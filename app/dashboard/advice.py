"""The alternatives to a refused request, for the pages of a run and of a decision."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

from app.api.schemas.refusals import alternative_sentences, refusal_facts
from app.ledger.accounts import Account
from app.ledger.alternatives import AlternativeType
from app.ledger.decisions import Decision
from app.ledger.proposals import Proposal, ProposalStatus


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
        texts = alternative_sentences(facts, stated=0) or ["No alternative would let the training finish."]
        return cls(texts, next(raised, []))

    def requestable(self, accounts: Sequence[Account], requests: Sequence[Proposal], *, ended: bool) -> Self:
        """Copy with the limits that may be requested now.

        Left out are those that somebody has requested, or that the accounts of the run have reached meanwhile, and the
        run's own if it has ended.
        """
        waiting = {each.account_id for each in requests if each.status is ProposalStatus.OPEN}
        asked = [each for each in (accounts[:-1] if ended else accounts) if each.id not in waiting]
        present = {each.id: each.limit.epsilon for each in asked if each.limit is not None}
        limits = [each for each in self.limits if each["epsilon"] > present.get(each["account"], inf)]
        return replace(self, limits=limits)
