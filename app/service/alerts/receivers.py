"""Receivers, their secrets and their deliveries.

All use cases need ALERT_MANAGE in the whole organisation. NotFoundError: the receiver, account or delivery does not
exist; ReceiverStateConflictError: the receiver is disabled.
"""

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from sqlalchemy import Connection

from app.ledger.accounts.alerts import AlertType, Delivery, DeliveryFilter
from app.ledger.accounts.receivers import Receiver, ReceiverKind
from app.ledger.audit import AuditAction, digest
from app.ledger.errors import InvalidInputError, ReceiverStateConflictError, require_found
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.persistence.repositories import alerts
from app.service.accounts.lookup import find_account
from app.service.actors import name_actor
from app.service.alerts.alert_factory import make_test_alert
from app.service.alerts.ssrf_guard import check_url
from app.service.alerts.webhook_signatures import new_secret
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.ids import new_id

MOST_RECEIVERS = 20
"""Maximum number of active receivers of an organisation."""

LAST: Final = 5
"""Deliveries listed with the status of a receiver."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Receiver of alerts of some types or all, about an account (id or path) and those under it or all.

    Mail has addresses, every other kind a URL.
    """

    kind: ReceiverKind
    url: str | None
    addresses: tuple[str, ...]
    types: tuple[AlertType, ...]
    account: str | None


@dataclass(frozen=True, slots=True)
class ReceiverRules:
    """Which receivers the service can reach: at private addresses and over http, or by mail."""

    allow_private: bool
    sends_mail: bool


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """A receiver with its number of pending deliveries, and its newest deliveries."""

    receiver: Receiver
    waiting: int
    last: tuple[Delivery, ...]


@use_case(Permission.ALERT_MANAGE, whole_organisation=True)
def create_receiver(tx: Connection, context: RequestContext, wanted: Subscription, rules: ReceiverRules) -> Receiver:
    """Create a receiver.

    Raises:
        InvalidInputError: the URL is invalid, or mail cannot be sent.
        ReceiverStateConflictError: the organisation has the maximum number of receivers.
    """
    if wanted.url is not None:
        check_url(wanted.url, allow_private=rules.allow_private)
    elif not rules.sends_mail:
        raise InvalidInputError(
            "This service sends no mail, because it has no SMTP server. Choose another `kind`, or ask its operator to "
            "set EPSILON_LEDGER_SMTP_HOST and EPSILON_LEDGER_SMTP_FROM."
        )
    _require_room(tx, context)
    made = Receiver(
        id=new_id("rcv", context.now, alerts.newest_receiver_id(tx, context.organisation_id, "rcv")),
        kind=wanted.kind,
        url=wanted.url,
        addresses=wanted.addresses,
        types=tuple(map(str, wanted.types)),
        account_id=wanted.account and find_account(tx, context, wanted.account).account.id,
        secret=new_secret() if wanted.kind.form.signed else None,
        created_at=context.now,
    )
    alerts.add_receiver(tx, context.organisation_id, made)
    context.record(tx, AuditAction.RECEIVER_CREATED, made.id, after=facts(made))
    return made


def get_receiver(context: RequestContext, receiver_id: str) -> Receiver:
    """Get a receiver."""
    with context.read(Permission.ALERT_MANAGE, whole_organisation=True) as tx:
        return _found(tx, context, receiver_id)


def list_receivers(context: RequestContext, page: PageRequest) -> Page[Receiver]:
    """List receivers."""
    with context.read(Permission.ALERT_MANAGE, whole_organisation=True) as tx:
        return alerts.list_receivers(tx, context.organisation_id, page)


def list_receiver_statuses(context: RequestContext, page: PageRequest) -> Page[ReceiverStatus]:
    """List receivers with their deliveries."""
    with context.read(Permission.ALERT_MANAGE, whole_organisation=True) as tx:
        waiting = alerts.count_pending(tx, context.organisation_id)

        def status(receiver: Receiver) -> ReceiverStatus:
            last = alerts.list_deliveries(tx, context.organisation_id, DeliveryFilter(receiver.id), PageRequest(LAST))
            return ReceiverStatus(receiver, waiting.get(receiver.id, 0), tuple(last.items))

        found = alerts.list_receivers(tx, context.organisation_id, page)
        return found.map(lambda listed: [status(each) for each in listed])


@use_case(Permission.ALERT_MANAGE, whole_organisation=True)
def enable_receiver(tx: Connection, context: RequestContext, receiver_id: str) -> Receiver:
    """Enable a disabled receiver; an active one is returned unchanged.

    It begins without failures, and gets the alerts from now on. Deliveries that were given up stay so until they are
    retried.

    Raises:
        ReceiverStateConflictError: the organisation has the maximum number of receivers.
    """
    before = _found(tx, context, receiver_id)
    if before.disabled_at is None:
        return before
    _require_room(tx, context)
    alerts.enable_receiver(tx, context.organisation_id, receiver_id)
    was = {"disabled_reason": before.disabled_reason}
    context.record(tx, AuditAction.RECEIVER_ENABLED, receiver_id, before=was, after=facts(before))
    return _found(tx, context, receiver_id)


@use_case(Permission.ALERT_MANAGE, whole_organisation=True)
def delete_receiver(tx: Connection, context: RequestContext, receiver_id: str) -> None:
    """Delete a receiver, active or disabled, with its deliveries."""
    before = _found(tx, context, receiver_id)
    alerts.delete_receiver(tx, context.organisation_id, receiver_id)
    context.record(tx, AuditAction.RECEIVER_DELETED, receiver_id, before=facts(before))


@use_case(Permission.ALERT_MANAGE, whole_organisation=True)
def disable_receiver(tx: Connection, context: RequestContext, receiver_id: str) -> Receiver:
    """Disable a receiver; a disabled one is returned unchanged."""
    before = _found(tx, context, receiver_id)
    if before.disabled_at is not None:
        return before
    why = f"It was disabled by {name_actor(tx, context.organisation_id, context.principal.actor)}."
    disable(tx, context, before, why)
    return _found(tx, context, receiver_id)


@use_case(Permission.ALERT_MANAGE, whole_organisation=True)
def rotate_secret(tx: Connection, context: RequestContext, receiver_id: str, overlap_seconds: int) -> Receiver:
    """Rotate a receiver's secret; the previous one signs too for `overlap_seconds`."""
    before = _enabled(tx, context, receiver_id)
    if not before.kind.form.signed:
        raise InvalidInputError(
            f"A receiver of the kind {before.kind} has no secret: only messages to webhooks are signed. To replace "
            "a URL that became known, create another receiver and delete this one."
        )
    until = context.now + timedelta(seconds=overlap_seconds)
    rotated = replace(before, secret=new_secret(), previous_secret=before.secret, previous_secret_expires_at=until)
    alerts.save_secrets(tx, context.organisation_id, rotated)
    said = {"overlap_seconds": overlap_seconds, "secret_sha256": _digest(rotated.secret)}
    context.record(tx, AuditAction.RECEIVER_SECRET_ROTATED, receiver_id, after=said)
    return rotated


@use_case(Permission.ALERT_MANAGE, whole_organisation=True)
def send_test_event(tx: Connection, context: RequestContext, receiver_id: str) -> Delivery:
    """Send a test event to a receiver at once."""
    _enabled(tx, context, receiver_id)
    delivery_id = alerts.add_test(tx, context.organisation_id, make_test_alert(receiver_id, context.now), receiver_id)
    made = alerts.find_delivery(tx, context.organisation_id, delivery_id)
    assert made is not None
    return made


def list_deliveries(context: RequestContext, wanted: DeliveryFilter, page: PageRequest) -> Page[Delivery]:
    """List deliveries."""
    with context.read(Permission.ALERT_MANAGE, whole_organisation=True) as tx:
        return alerts.list_deliveries(tx, context.organisation_id, wanted, page)


@use_case(Permission.ALERT_MANAGE, whole_organisation=True, locks_organisation=False)
def retry_delivery(tx: Connection, context: RequestContext, delivery_id: str) -> Delivery:
    """Retry a delivery at once, whatever its status, and return it as pending."""
    found = _delivery(tx, context, delivery_id)
    _enabled(tx, context, found.receiver_id)
    alerts.send_again(tx, context.organisation_id, delivery_id, context.now)
    return _delivery(tx, context, delivery_id)


def disable(tx: Connection, context: RequestContext, receiver: Receiver, why: str) -> None:
    """Disable an active receiver, cancel its deliveries and record the audit event.

    The transaction holds the organisation's lock.
    """
    alerts.disable_receiver(tx, context.organisation_id, receiver.id, why, context.now)
    alerts.give_up(tx, context.organisation_id, receiver.id)
    context.record(tx, AuditAction.RECEIVER_DISABLED, receiver.id, before=facts(receiver), reason=why)


def facts(receiver: Receiver) -> dict[str, object]:
    """Build the audited facts of a receiver; only the host of its URL, and no mail address, which is personal data."""
    return {
        "kind": str(receiver.kind),
        "host": receiver.url and urlsplit(receiver.url).hostname,
        "types": list(receiver.types),
        "account": receiver.account_id,
        "url_sha256": _digest(receiver.url),
        "addresses_sha256": digest(json.dumps(receiver.addresses)),
        "secret_sha256": _digest(receiver.secret),
    }


def _digest(secret: str | None) -> str | None:
    return None if secret is None else digest(secret)


def _require_room(tx: Connection, context: RequestContext) -> None:
    if len(alerts.active_receivers(tx, context.organisation_id)) >= MOST_RECEIVERS:
        raise ReceiverStateConflictError(
            f"An organisation has at most {MOST_RECEIVERS} active receivers; disable or delete one that is not needed."
        )


def _delivery(tx: Connection, context: RequestContext, delivery_id: str) -> Delivery:
    return require_found(alerts.find_delivery(tx, context.organisation_id, delivery_id), "delivery", delivery_id)


def _found(tx: Connection, context: RequestContext, receiver_id: str) -> Receiver:
    return require_found(alerts.find_receiver(tx, context.organisation_id, receiver_id), "receiver", receiver_id)


def _enabled(tx: Connection, context: RequestContext, receiver_id: str) -> Receiver:
    found = _found(tx, context, receiver_id)
    if found.disabled_reason is not None:
        raise ReceiverStateConflictError(f"The receiver is disabled. {found.disabled_reason} Enable it first.")
    return found
