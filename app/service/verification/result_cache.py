"""What verifications have found last, as long as this process lives: those that somebody asked this process for."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.persistence.lru_cache import LruCache
from app.service.auth.request_context import RequestContext
from app.service.verification.report import VerificationReport

REMEMBERED: Final = 1000
"""Organisations."""

MOST_FAULTS: Final = 100
"""Of one verification."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A verification that was made.

    Args:
        sound: whether everything agreed.
        accounts: balances that were recomputed.
        decisions: that were walked.
        acts: that were hashed again.
        faults: sentences about what does not agree, the first ones.
        hidden: how many more there are.
        actor: who asked for it.
        at: when, in UTC.
    """

    sound: bool
    accounts: int
    decisions: int
    acts: int
    faults: tuple[str, ...]
    hidden: int
    actor: str
    at: datetime


class Verifications:
    """The last one of each organisation; any thread may ask."""

    def __init__(self) -> None:
        self._known: LruCache[str, Verified] = LruCache(REMEMBERED)

    def keep(self, call: RequestContext, found: VerificationReport) -> None:
        """Remember what was found.

        Args:
            call: who asked, and when.
            found: in the caller's whole organisation.
        """
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
        """What was found last; None: nobody has asked this process."""
        return self._known.get(organisation_id)
