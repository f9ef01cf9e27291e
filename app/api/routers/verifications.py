"""Verifications of the ledger."""

from anyio import CapacityLimiter, to_thread
from fastapi import Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.lists import ListEndpoint, NoFilter, add_list, unfiltered
from app.api.problems import READ_ERRORS, WRITE_ERRORS
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.verifications import Verification
from app.service.auth.request_context import RequestContext
from app.service.verification import requests

routes = router("verifications")

VERIFIERS = CapacityLimiter(1)
"""Runs one verification at a time, which reads everything, so that steps get threads."""


@routes.create("/verifications", "Verify the ledger", Verification, *WRITE_ERRORS, "idempotency_key_reused")
async def create_verification(context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Recompute every account of the organisation from its charges; the time grows with their number.

    An account whose balance is not proven is quarantined: writes to it are refused until two persons lift the
    quarantine (`liftQuarantine`), whatever later verifications find.
    """

    def verify() -> Response:
        effect = requests.store_verification.effect(context, requests.verify_organisation(context))
        return idempotency.respond(effect, Verification.of)

    return await to_thread.run_sync(verify, limiter=VERIFIERS)


async def verify_now(context: RequestContext) -> None:
    """Verify the caller's organisation, one at a time, and store the result."""

    def verify() -> None:
        requests.store_verification(context, requests.verify_organisation(context))

    await to_thread.run_sync(verify, limiter=VERIFIERS)


add_list(
    routes,
    ListEndpoint(
        "verifications",
        NoFilter,
        unfiltered(requests.list_verifications),
        Verification,
        "List the organisation's verifications through this API, newest first; the newest 1,000 are kept.",
    ),
)


@routes.read("/verifications/{verification_id}", "Get a verification", Verification, *READ_ERRORS, "permission_denied")
def get_verification(verification_id: str, request: Request, context: ContextDep) -> Response:
    """Get the stored result of a verification."""
    return etag_response(request, Verification.of(requests.get_verification(context, verification_id)))
