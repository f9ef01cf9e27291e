"""Proposals and their reviews by another person."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self

from app.ledger.filter.limits import Limit
from app.ledger.query_parameters import parameter
from app.ledger.runs.run import RunStatus


class ProposalKind(StrEnum):
    """The subject of a proposal: a limit, policy, run, population, quarantine, allocation, or an archived account."""

    LIMIT = "limit"
    RUN = "run"
    POLICY = "policy"
    POPULATION = "population"
    QUARANTINE = "quarantine"
    ALLOCATION = "allocation"
    UNARCHIVAL = "unarchival"


EXCLUSIVE: Final[Mapping[ProposalKind, frozenset[ProposalKind]]] = {
    ProposalKind.LIMIT: frozenset({ProposalKind.LIMIT, ProposalKind.RUN}),
    **{kind: frozenset({kind}) for kind in (ProposalKind.POLICY, ProposalKind.ALLOCATION, ProposalKind.UNARCHIVAL)},
}
"""Kinds whose open proposals about an account, or the organisation, prevent another one of a kind."""


class ProposalStatus(StrEnum):
    """The status of a proposal."""

    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that needs another person's approval.

    Args:
        account_id: the subject; None: the organisation itself.
        payload: the change, as canonical JSON.
        reason: the proposer's; `decision_reason` is the reviewer's.
    """

    id: str
    kind: ProposalKind
    account_id: str | None
    payload: str
    status: ProposalStatus
    reason: str
    proposed_by: str
    proposed_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    decision_reason: str | None = None

    @property
    def proposed(self) -> Any:  # noqa: ANN401 - each kind has facts of its own
        """The proposed change."""
        return json.loads(self.payload)

    @property
    def subject(self) -> str:
        """The account's id; not for proposals about the organisation."""
        assert self.account_id is not None, "it is about the organisation itself"
        return self.account_id


@dataclass(frozen=True, slots=True)
class ProposalFilter:
    """A filter of proposals; None: any. An account_id of `ORGANISATION` is the organisation itself."""

    status: ProposalStatus | None = parameter("Only items with this status.")
    within: str | None = parameter(
        "Only proposals about this account (id or path) or accounts under it.", name="account", is_reference=True
    )
    account_id: str | None = None
    kinds: frozenset[ProposalKind] | None = None


_GOING: Final = frozenset({RunStatus.ACTIVE, RunStatus.PAUSED})


@dataclass(frozen=True, slots=True)
class Unapproved:
    """A run without a second person's approval.

    Epsilon and delta are of its own limit, or the largest and smallest of its budgets, as they are shown. `spent` is
    the epsilon of its last decision, possibly infinite, if it has its own unchanged limit; None: computable from the
    balance only.
    """

    id: str
    status: RunStatus
    epsilon: float
    delta: float
    spent: float | None

    @classmethod
    def of(cls, run_id: str, status: RunStatus, limits: Sequence[Limit], spent: float | None) -> Self:
        """Take epsilon and delta from the limits that govern a run."""
        epsilon = max(limit.epsilon for limit in limits)
        return cls(run_id, status, epsilon, min(limit.shown_delta for limit in limits), spent)

    @property
    def going(self) -> bool:
        """Whether it may still spend."""
        return self.status in _GOING

    def counted(self, spent: float) -> float:
        """Compute the epsilon that it counts for: at least a live run's limit."""
        return max(spent, self.epsilon) if self.going else spent
