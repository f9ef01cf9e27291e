"""Governance: is the ledger what its charges make it?"""

from anyio import CapacityLimiter, to_thread

from app.api.problems import GUARDED, responses
from app.api.route import Asked, router
from app.api.schemas.governance import VerificationOut
from app.service.verification import verify_organisation

routes = router()

VERIFIERS = CapacityLimiter(1)
"""A verification reads everything; the next one waits, and trainers keep their threads."""


@routes.get(
    "/verify",
    operation_id="verifyLedger",
    summary="Recompute every balance and walk every chain",
    tags=["governance"],
    responses=responses(*GUARDED, "insufficient_scope", "invalid_request"),
)
async def verify_ledger(call: Asked) -> VerificationOut:
    """Every account of the caller's organisation from its charges alone; it takes as long as there are charges.

    Writes to an account whose balance is not proven are stopped, until a later verification finds it sound.
    """
    return VerificationOut.of(await to_thread.run_sync(verify_organisation, call, limiter=VERIFIERS))
