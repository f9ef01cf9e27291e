"""Results of verifications."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A discrepancy between the ledger's records.

    Args:
        organisation_id: None: an event's description, found while all ledgers are verified.
        account_id: the account whose balance it leaves unproven; None: no account.
        position: the first bad decision of the run's chain; None: not about a decision.
    """

    organisation_id: str | None
    account_id: str | None
    position: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class QuarantinedAccount:
    """A quarantined account with the reason; `liftable` if no discrepancy of it remains."""

    account_id: str
    detail: str
    liftable: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification of an organisation.

    Args:
        checked: number of checked objects, by kind.
        discrepancies: the first ones.
        discrepancy_count: number of all discrepancies.
        quarantined: the first quarantined accounts.
        quarantined_count: number of all quarantined accounts.
    """

    id: str
    organisation_id: str
    actor: str
    checked: Mapping[str, int]
    discrepancies: tuple[Discrepancy, ...]
    discrepancy_count: int
    quarantined: tuple[QuarantinedAccount, ...]
    quarantined_count: int
    created_at: datetime

    @property
    def sound(self) -> bool:
        """Whether there were no discrepancies."""
        return self.discrepancy_count == 0
