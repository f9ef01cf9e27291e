"""Webhooks: made, read, disabled; their secrets and what was delivered to them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import NotFoundError, WebhookStateConflictError
from app.ledger.hash_chain import digest
from app.ledger.permissions import Permission
from app.persistence.repositories import alerts, deliveries, organisations, webhooks
from app.persistence.repositories.alerts import AlertType, DeliveryStatus
from app.persistence.repositories.deliveries import Delivery
from app.persistence.repositories.webhooks import Webhook
from app.service.accounts.lookup import find_account
from app.service.alerts.alert_factory import trial
from app.service.alerts.disabling import disable, facts
from app.service.alerts.ssrf_guard import check_url
from app.service.alerts.webhook_signatures import new_secret
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.idempotency import IdempotentRequest, StoredResponse, require_no_key, run_idempotent
from app.service.ids import new_id

MOST_WEBHOOKS = 20
"""Of an organisation, those that are disabled not counted."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a webhook is told.

    Args:
        url: where to.
        types: of alerts; empty: every one.
        account: id, or path of names: only what is about it or lies beneath it; None: about all.
    """

    url: str
    types: tuple[AlertType, ...]
    account: str | None


def create_webhook(
    call: RequestContext,
    wanted: Subscription,
    identity: IdempotentRequest,
    render: Callable[[Webhook], str],
    *,
    allow_private: bool,
) -> StoredResponse:
    """Have alerts sent to a URL.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        wanted: what is sent, and where to.
        identity: of the request; its reply is not kept, for the secret is in it.
        render: makes the reply's body, which is the only one to hold the secret.
        allow_private: whether the URL may lead to addresses that are not public, and by http.

    Returns:
        The reply.

    Raises:
        InvalidInputError: the URL is none that a webhook can have, or the request carries an idempotency key.
        NotFoundError: there is no such account.
        WebhookStateConflictError: the organisation has as many as it may have.
    """
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)
    require_no_key(identity, "disable the webhook whose secret nobody has, and make another one")
    check_url(wanted.url, allow_private=allow_private)

    def create(tx: Connection, _: PrecomputedCosts) -> str:
        if len(webhooks.active(tx, call.organisation_id)) >= MOST_WEBHOOKS:
            raise WebhookStateConflictError(
                f"An organisation has at most {MOST_WEBHOOKS} webhooks; disable one that is not needed any more."
            )
        made = Webhook(
            id=new_id("whk", call.now, webhooks.newest_id(tx, call.organisation_id)),
            url=wanted.url,
            types=tuple(map(str, wanted.types)),
            account_id=wanted.account and find_account(tx, call, wanted.account).account.id,
            secret=new_secret(),
            created_at=call.now,
        )
        webhooks.add(tx, call.organisation_id, made)
        call.record(tx, AuditEvent(AuditAction.WEBHOOK_CREATED, made.id, after=facts(made)))
        return render(made)

    return run_idempotent(call, identity, create)


def get_webhook(call: RequestContext, webhook_id: str) -> Webhook:
    """Read a webhook.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        webhook_id: its id.

    Returns:
        The webhook.

    Raises:
        NotFoundError: the organisation has none such.
    """
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)
    with call.db.read(call.organisation_id) as tx:
        return _found(tx, call, webhook_id)


def list_webhooks(call: RequestContext, *, after: str | None, limit: int) -> list[Webhook]:
    """Read webhooks in the order of their making.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        after: only those after this id.
        limit: how many at the most.

    Returns:
        The webhooks.
    """
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)
    with call.db.read(call.organisation_id) as tx:
        return list(webhooks.page(tx, call.organisation_id, after=after, limit=limit))


def disable_webhook(call: RequestContext, webhook_id: str) -> Webhook:
    """Send nothing to a webhook any more; to do it again changes nothing.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        webhook_id: its id.

    Returns:
        The webhook afterwards.

    Raises:
        NotFoundError: the organisation has none such.
    """
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)

    def write() -> Webhook:
        with call.db.write(call.organisation_id) as tx:
            organisations.lock(tx, call.organisation_id)
            before = _found(tx, call, webhook_id)
            if before.disabled_at is not None:
                return before
            why = f"It was disabled by {call.principal.actor}."
            disable(tx, call.organisation_id, before, call.actor, why, call.now)
            return _found(tx, call, webhook_id)

    return call.db.retried(write)


def rotate_secret(
    call: RequestContext,
    webhook_id: str,
    overlap_seconds: int,
    identity: IdempotentRequest,
    render: Callable[[Webhook], str],
) -> StoredResponse:
    """Give a webhook a new secret; for a while everything is signed with the one before as well.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        webhook_id: its id.
        overlap_seconds: for how long; 0: not at all.
        identity: of the request; its reply is not kept, for the secret is in it.
        render: makes the reply's body, which holds the new secret.

    Returns:
        The reply.

    Raises:
        NotFoundError: the organisation has none such.
        WebhookStateConflictError: it is disabled.
        InvalidInputError: the request carries an idempotency key.
    """
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)
    require_no_key(identity, "ask again, for another one still")

    def create(tx: Connection, _: PrecomputedCosts) -> str:
        before = _enabled(tx, call, webhook_id)
        until = call.now + timedelta(seconds=overlap_seconds)
        rotated = replace(before, secret=new_secret(), previous_secret=before.secret, previous_secret_expires_at=until)
        webhooks.save_secrets(tx, call.organisation_id, rotated)
        said = {"overlap_seconds": overlap_seconds, "secret_sha256": digest(rotated.secret)}
        call.record(tx, AuditEvent(AuditAction.WEBHOOK_SECRET_ROTATED, webhook_id, after=said))
        return render(rotated)

    return run_idempotent(call, identity, create)


def send_test_event(
    call: RequestContext, webhook_id: str, identity: IdempotentRequest, render: Callable[[Delivery], str]
) -> StoredResponse:
    """Send something to a webhook that means nothing.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        webhook_id: its id.
        identity: of the request.
        render: makes the reply's body.

    Returns:
        The reply: the delivery, which is due at once.

    Raises:
        NotFoundError: the organisation has none such.
        WebhookStateConflictError: it is disabled.
    """
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)

    def create(tx: Connection, _: PrecomputedCosts) -> str:
        _enabled(tx, call, webhook_id)
        delivery_id = alerts.add_test(tx, call.organisation_id, trial(webhook_id, call.now), webhook_id)
        made = deliveries.find(tx, call.organisation_id, delivery_id)
        assert made is not None
        return render(made)

    return run_idempotent(call, identity, create)


def list_deliveries(
    call: RequestContext,
    *,
    webhook: str | None,
    alert: str | None,
    status: DeliveryStatus | None,
    before: str | None,
    limit: int,
) -> list[Delivery]:
    """Read deliveries, the newest first.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        webhook: only those to this one.
        alert: only those of this one.
        status: only those in this state.
        before: only those before this id.
        limit: how many at the most.

    Returns:
        The deliveries.
    """
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)
    with call.db.read(call.organisation_id) as tx:
        return deliveries.page(
            tx, call.organisation_id, webhook_id=webhook, alert_id=alert, status=status, before=before, limit=limit
        )


def retry_delivery(call: RequestContext, delivery_id: str) -> Delivery:
    """Send an alert to a webhook once more, at once, whatever became of it before.

    Args:
        call: needs WEBHOOK_MANAGE, in the whole organisation.
        delivery_id: of the delivery.

    Returns:
        The delivery afterwards: pending.

    Raises:
        NotFoundError: the organisation has none such.
        WebhookStateConflictError: its webhook is disabled.
    """
    call.require_organisation_scope(Permission.WEBHOOK_MANAGE)

    def write() -> Delivery:
        with call.db.write(call.organisation_id) as tx:
            found = _delivery(tx, call, delivery_id)
            _enabled(tx, call, found.webhook_id)
            deliveries.send_again(tx, call.organisation_id, delivery_id, call.now)
            return _delivery(tx, call, delivery_id)

    return call.db.retried(write)


def _delivery(tx: Connection, call: RequestContext, delivery_id: str) -> Delivery:
    found = deliveries.find(tx, call.organisation_id, delivery_id)
    if found is None:
        raise NotFoundError(f"There is no delivery {delivery_id!r} in your organisation.")
    return found


def _found(tx: Connection, call: RequestContext, webhook_id: str) -> Webhook:
    found = webhooks.find(tx, call.organisation_id, webhook_id)
    if found is None:
        raise NotFoundError(f"There is no webhook {webhook_id!r} in your organisation.")
    return found


def _enabled(tx: Connection, call: RequestContext, webhook_id: str) -> Webhook:
    found = _found(tx, call, webhook_id)
    if found.disabled_reason is not None:
        raise WebhookStateConflictError(f"The webhook is disabled. {found.disabled_reason} Make a new one.")
    return found
