"""Sending of alerts to receivers of every kind."""

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from app.ledger.accounts.receivers import ReceiverKind
from app.persistence.repositories.alerts import ClaimedDelivery
from app.service.alerts.http_sender import DeliveryResult, HttpSender
from app.service.alerts.mail_sender import MailSender, SmtpServer
from app.service.alerts.messages import Message, message_of
from app.service.alerts.webhook_signatures import message, signed_headers
from app.service.egress.connection import Resolver, resolve
from app.service.egress.thread import EGRESS

LINK_TITLE = "Open Epsilon Ledger"


def slack_body(message: Message, link: str | None) -> bytes:
    """Build the body of a Slack incoming webhook, in Block Kit."""
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _slack_text(message.subject)},
        {"type": "section", "text": _slack_text(message.text)},
    ]
    if message.facts:
        fields = [_slack_text(f"{name}: {value}", 2000) for name, value in message.facts]
        blocks.append({"type": "section", "fields": fields})
    blocks.append({"type": "context", "elements": [_slack_text(message.action)]})
    if link is not None:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{_escaped(link)}|{LINK_TITLE}>"}})
    # Shown by notifications; unlike the blocks it is markup, in which these three characters are special.
    return json.dumps({"text": _escaped(message.subject), "blocks": blocks}).encode()


def teams_body(message: Message, link: str | None) -> bytes:
    """Build the body of a Teams workflow that posts what it receives, with an Adaptive Card."""
    body = [
        _teams_text(message.subject, weight="Bolder", size="Medium"),
        _teams_text(message.text),
        *(_teams_text(f"{name}: {value}", spacing="Small") for name, value in message.facts),
        _teams_text(message.action, isSubtle=True),
    ]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if link is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": LINK_TITLE, "url": link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return json.dumps({"type": "message", "attachments": [attachment]}).encode()


def _slack_text(text: str, most: int = 3000) -> dict[str, Any]:
    return {"type": "plain_text", "text": text[:most], "emoji": False}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams_text(text: str, *, spacing: str = "Default", **style: object) -> dict[str, Any]:
    # A TextBlock would render Markdown, a TextRun does not.
    return {"type": "RichTextBlock", "spacing": spacing, "inlines": [{"type": "TextRun", "text": text, **style}]}


CHAT_BODIES: Final[Mapping[ReceiverKind, Callable[[Message, str | None], bytes]]] = {
    ReceiverKind.SLACK: slack_body,
    ReceiverKind.TEAMS: teams_body,
}
"""Builders of the JSON body of a message, with a link to the page that shows it."""


class AlertSender:
    """Sends alerts by HTTP and mail."""

    def __init__(
        self,
        *,
        allow_private: bool,
        smtp: SmtpServer | None = None,
        public_url: str | None = None,
        resolver: Resolver = resolve,
    ) -> None:
        self._http = HttpSender(allow_private=allow_private, resolver=resolver)
        self._mail = MailSender(smtp)
        self._public_url = public_url

    async def send(self, due: ClaimedDelivery, now: datetime) -> DeliveryResult:
        """Send an alert to a receiver once, in the egress thread."""
        return await asyncio.wrap_future(EGRESS.submit(self._send(due, now)))

    async def _send(self, due: ClaimedDelivery, now: datetime) -> DeliveryResult:
        receiver, alert = due.receiver, due.alert
        if receiver.kind.form.signed:
            body = message(alert)
            headers = signed_headers(receiver.secrets(now), alert.id, int(now.timestamp()), body)
            return await self._http.post(receiver.url or "", headers, body)
        written = message_of(alert)
        link = None if self._public_url is None else self._public_url + written.path
        if receiver.kind.form.by_mail:
            return await self._mail.send(alert, written, receiver.addresses, link)
        return await self._http.post(receiver.url or "", {}, CHAT_BODIES[receiver.kind](written, link))
