"""What a verification found, on the wire."""

from typing import Self

from pydantic import ConfigDict, Field

from app.api.schemas.common import Output
from app.api.schemas.examples import EXAMPLE_RUN_ID
from app.service.verification import Fault, Verification


class FaultOut(Output):
    """Something that does not agree."""

    account: str | None = Field(description="Whose balance is not proven; writes to it are stopped. Null: a price.")
    position: int | None = Field(description="The first bad decision of the run's chain; null if it is no decision.")
    detail: str

    @classmethod
    def of(cls, fault: Fault) -> Self:
        """From the domain."""
        return cls(account=fault.account_id, position=fault.position, detail=fault.detail)


class VerificationOut(Output):
    """What was recomputed from the charges alone, and what did not agree."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "sound": False,
                    "accounts": 3,
                    "runs": 1,
                    "decisions": 3,
                    "reservations": 0,
                    "charges": 2,
                    "steps": 420,
                    "faults": [
                        {
                            "account": EXAMPLE_RUN_ID,
                            "position": 1,
                            "detail": f"mimic/icu-team/resnet ({EXAMPLE_RUN_ID}): decision 1 is not the one that was "
                            "made: its hash is that of another.",
                        }
                    ],
                }
            ]
        }
    )

    sound: bool
    accounts: int = Field(description="How many balances were recomputed.")
    runs: int = Field(description="How many chains were walked.")
    decisions: int
    reservations: int
    charges: int = Field(description="How many charged step events were summed.")
    steps: int = Field(description="How many steps these stand for.")
    faults: list[FaultOut] = Field(description="Empty if the ledger is sound.")

    @classmethod
    def of(cls, found: Verification) -> Self:
        """From the domain."""
        return cls(
            sound=found.sound,
            accounts=found.accounts,
            runs=found.runs,
            decisions=found.decisions,
            reservations=found.reservations,
            charges=found.charges,
            steps=found.steps,
            faults=[FaultOut.of(fault) for fault in found.faults],
        )
