"""Bodies of messages to chats.

What people named or wrote is sent as plain text: such text cannot format, link or mention anybody.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from app.ledger.accounts.receivers import ReceiverKind
from app.service.alerts.messages import Message

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
