"""Signed checkpoints, and the public key that verifies them."""

from http import HTTPStatus

from fastapi import Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.lists import ListEndpoint, NoFilter, add_list, unfiltered
from app.api.problems import AUTH_ERRORS, WRITE_ERRORS
from app.api.route import ContextDep, SignerDep, etag_response, router
from app.api.schemas.checkpoints import Checkpoint, SigningKey
from app.service.audit import checkpoints
from app.service.idempotency import StoredResponse

routes = router("checkpoints")


@routes.read(
    "/signing-key", "Get the public signing key", SigningKey, *AUTH_ERRORS, "invalid_request", "signing_not_configured"
)
def get_signing_key(request: Request, context: ContextDep, signer: SignerDep) -> Response:
    """Get the public key. Auditors should also get it directly from the operator."""
    del context  # available to every caller
    return etag_response(request, SigningKey.of(signer))


@routes.create(
    "/checkpoints", "Create a checkpoint", Checkpoint, *WRITE_ERRORS, "idempotency_key_reused", "signing_not_configured"
)
def create_checkpoint(context: ContextDep, signer: SignerDep, idempotency: IdempotencyDep) -> Response:
    """Anchor every run's chain in the audit log, and sign its head. Without changes, return the latest checkpoint."""
    effect = checkpoints.make_checkpoint.effect(context, signer)
    return idempotency.respond(effect, lambda made: StoredResponse(made.document, HTTPStatus.CREATED))


add_list(
    routes,
    ListEndpoint(
        "checkpoints",
        NoFilter,
        unfiltered(checkpoints.list_checkpoints),
        Checkpoint,
        "List checkpoints, newest first. Keep copies elsewhere: write access to the ledger includes them.",
    ),
)
