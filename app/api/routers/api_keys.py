"""API keys of machines and of people."""

from fastapi import Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.lists import ListEndpoint, NoFilter, add_list, unfiltered
from app.api.problems import READ_ERRORS, WRITE_ERRORS
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.api_keys import ApiKey, CreateApiKey, CreatedApiKey, RevokeApiKey, RotateApiKey
from app.service.keys import api_keys

routes = router("api-keys")

_IF_LOST = "revoke the lost key and retry"


@routes.create("/api-keys", "Create an API key", CreatedApiKey, *WRITE_ERRORS, "name_taken", "not_found")
def create_api_key(body: CreateApiKey, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Create a key. Only this response contains its secret; the request therefore takes no Idempotency-Key."""
    return idempotency.respond_with_secret(api_keys.issue_key.effect(context, body.terms()), CreatedApiKey.of, _IF_LOST)


add_list(routes, ListEndpoint("api-keys", NoFilter, unfiltered(api_keys.list_keys), ApiKey, items="API keys"))


@routes.read("/api-keys/{key_id}", "Get an API key", ApiKey, *READ_ERRORS)
def get_api_key(key_id: str, request: Request, context: ContextDep) -> Response:
    """Get a key's role, scope, expiry and last use. Every key can get itself."""
    return etag_response(request, ApiKey.of(api_keys.get_key(context, key_id)))


@routes.create("/api-keys/{key_id}/rotate", "Rotate an API key", CreatedApiKey, *WRITE_ERRORS, "not_found")
def rotate_api_key(
    key_id: str, context: ContextDep, idempotency: IdempotencyDep, body: RotateApiKey | None = None
) -> Response:
    """Replace a key by a new one; the old one expires after an overlap. Every key can rotate itself.

    The new key expires when the old one would have, or earlier if the caller issues none that lasts so long.
    """
    effect = api_keys.rotate_key.effect(context, key_id, (body or RotateApiKey()).overlap_seconds)
    return idempotency.respond_with_secret(effect, CreatedApiKey.of, _IF_LOST)


@routes.change("/api-keys/{key_id}/revoke", "Revoke an API key", *WRITE_ERRORS, "not_found")
def revoke_api_key(key_id: str, context: ContextDep, body: RevokeApiKey | None = None) -> ApiKey:
    """Revoke a key; every replica rejects it within a second. Every key can revoke itself."""
    revocation = body or RevokeApiKey()
    return ApiKey.of(
        api_keys.revoke_key(context, key_id, revocation.reason, include_successors=revocation.include_successors)
    )
