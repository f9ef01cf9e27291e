"""Cache the latest verification of each organisation that this process ran on request."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.persistence.lru_cache import LruCache
from app.service.auth.request_context import RequestContext
from app.service.verification.report import VerificationReport

REMEMBERED: Final = 1000
"""Size of the cache, in organisations."""

MOST_FAULTS: Final = 100
"""Discrepancies kept per verification."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Summary of a verification; `hidden` counts the discrepancies beyond the first ones."""

    sound: bool
    accounts: int
    decisions: int
    acts: int
    faults: tuple[str, ...]
    hidden: int
    actor: str
    at: datetime


class Verifications:
    """Latest verifications; safe to use from any thread."""

    def __init__(self) -> None:
        self._known: LruCache[str, Verified] = LruCache(REMEMBERED)

    def keep(self, call: RequestContext, found: VerificationReport) -> None:
        """Store a verification of the caller's whole organisation."""
        made = Verified(
            sound=found.sound,
            accounts=found.accounts,
            decisions=found.decisions,
            acts=found.acts,
            faults=tuple(fault.detail for fault in found.faults[:MOST_FAULTS]),
            hidden=max(0, len(found.faults) - MOST_FAULTS),
            actor=call.principal.actor,
            at=call.now,
        )
        self._known.put(call.organisation_id, made)

    def last(self, organisation_id: str) -> Verified | None:
        """Get the latest verification; None: none by this process."""
        return self._known.get(organisation_id)
