"""Keys of workloads, for which tokens of their cluster or CI are exchanged (RFC 8693)."""

from typing import TYPE_CHECKING

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.errors import InvalidInputError
from app.ledger.names import MAX_NAME_LENGTH
from app.ledger.permissions import SINGLE_USE_ROLE
from app.persistence.database import Database
from app.persistence.repositories import accounts, api_keys
from app.service import metrics
from app.service.accounts.lookup import missing_account_error
from app.service.auth.authentication import Principal
from app.service.auth.oidc.errors import TokenRefusedError
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.keys.api_keys import IssuedKey, KeyTerms, add_key

if TYPE_CHECKING:  # it loads joserfc, which most services never need
    from app.service.auth.workload.authenticator import WorkloadAuthenticator, WorkloadIdentity


def exchange_token(
    authenticator: "WorkloadAuthenticator",
    db: Database,
    identity: "WorkloadIdentity",
    run_id: str | None = None,
    request_id: str | None = None,
) -> IssuedKey:
    """Issue a key for the token of an authenticated workload; it ends with the token at the latest.

    With `run_id`, the key is for this run; otherwise it is as the rule says.

    Raises:
        TokenRefusedError: the token was exchanged before, and its issuer's tokens are exchanged once.
        InvalidInputError: the rule gives no role that authorizes the steps of a run.
        NotFoundError: there is no such run.
        PermissionDeniedError: the run is outside the rule's scope.
    """
    rule = identity.rule
    caller = Principal(identity.organisation_id, identity.actor, rule.role, identity.scope)
    context = RequestContext(db, caller, db.clock.now(), request_id)
    if run_id is not None and rule.role is not SINGLE_USE_ROLE:
        raise InvalidInputError(
            f"The rule for this token gives the role {rule.role}, and keys for one run have the role "
            f"{SINGLE_USE_ROLE}. Leave `run_id` out.",
            field="run_id",
        )

    try:
        issued = _issue(context, identity, run_id)
    except TokenRefusedError as error:
        authenticator.refuse(identity, error, request_id)
        raise
    metrics.count_token_exchange(identity.issuer.name, issued=True)
    return issued


@use_case()
def _issue(tx: Connection, context: RequestContext, identity: "WorkloadIdentity", run_id: str | None) -> IssuedKey:
    if run_id is not None:
        _require_run(tx, context, run_id)
    rule, used = identity.rule, identity.token_hash
    if used is not None and api_keys.is_token_used(tx, context.organisation_id, used):
        raise TokenRefusedError("replayed", "The token was exchanged before; get a new one.")
    terms = KeyTerms(
        rule.role,
        _name(identity),
        run_id or identity.scope,
        min(identity.expires_at, context.now + identity.issuer.key_lifetime),
        single_use=rule.single_use or run_id is not None,
    )
    token = {"issuer": identity.issuer.issuer, "claims": dict(identity.claims)}
    return add_key(tx, context, terms, token_hash=used, facts={"token": token})


def _require_run(tx: Connection, context: RequestContext, run_id: str) -> None:
    """Require that a run exists in the scope of the rule."""
    path = accounts.path_of(tx, context.organisation_id, run_id)
    if not path or path[-1].account.kind is not AccountKind.RUN:
        raise missing_account_error(AccountKind.RUN, run_id)
    context.require_scope([record.account.id for record in path])


def _name(identity: "WorkloadIdentity") -> str | None:
    """Name a key after its workload, if that fits."""
    name = identity.actor.partition(":")[2]
    return name if len(name) <= MAX_NAME_LENGTH else None
