"""Receivers of alerts, of each kind (ADR 0039)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

SHOWN_CHARACTERS: Final = 4
"""Last characters of a secret URL, by which people recognise it."""


@dataclass(frozen=True, slots=True)
class ReceiverForm:
    """What receivers of a kind are.

    Args:
        title: as pages show it.
        gets: what is sent, and where.
        signed: whether messages are signed. Without a signature the URL is a secret, for it lets anyone post.
        by_mail: whether it has addresses instead of a URL.
    """

    title: str
    gets: str
    signed: bool = False
    by_mail: bool = False


class ReceiverKind(StrEnum):
    """How a receiver gets alerts."""

    WEBHOOK = "webhook"
    SLACK = "slack"
    TEAMS = "teams"
    EMAIL = "email"

    @property
    def form(self) -> ReceiverForm:
        """What receivers of the kind are."""
        return _FORMS[self]


_FORMS: Final[Mapping[ReceiverKind, ReceiverForm]] = {
    ReceiverKind.WEBHOOK: ReceiverForm("Webhook", "signed JSON to a service of yours", signed=True),
    ReceiverKind.SLACK: ReceiverForm("Slack", "a message to the channel of an incoming webhook"),
    ReceiverKind.TEAMS: ReceiverForm("Microsoft Teams", "a card to the channel of a workflow"),
    ReceiverKind.EMAIL: ReceiverForm("E-mail", "a mail", by_mail=True),
}


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of alerts.

    Args:
        kind: decides what is sent, and where.
        url: where to; None for mail. That of a chat is a secret.
        addresses: of mail.
        types: of alerts; empty: all.
        account_id: limits alerts to this account and its descendants, if set.
        secret: signs alerts to a webhook; shown only at creation.
        previous_secret: signs, too, until `previous_secret_expires_at` after a rotation.
        disabled_reason: why nothing is sent, if disabled.
    """

    id: str
    kind: ReceiverKind
    url: str | None
    addresses: tuple[str, ...]
    types: tuple[str, ...]
    account_id: str | None
    secret: str | None
    created_at: datetime
    previous_secret: str | None = None
    previous_secret_expires_at: datetime | None = None
    disabled_at: datetime | None = None
    disabled_reason: str | None = None

    @property
    def shown_url(self) -> str | None:
        """The URL, masked if it is a secret that lets anyone post."""
        if self.url is None or self.kind.form.signed:
            return self.url
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}/…{self.url[-SHOWN_CHARACTERS:]}"

    @property
    def destination(self) -> str:
        """Where alerts go, as people may see it."""
        return self.shown_url or ", ".join(self.addresses)

    def wants(self, kind: str, above: Collection[str]) -> bool:
        """Check whether it receives alerts of a kind about an account with these ancestors."""
        return (not self.types or kind in self.types) and (self.account_id is None or self.account_id in above)

    def secrets(self, now: datetime) -> tuple[str, ...]:
        """List the current signing secrets, newest first."""
        if self.secret is None:
            return ()
        if (
            self.previous_secret is None
            or self.previous_secret_expires_at is None
            or now >= self.previous_secret_expires_at
        ):
            return (self.secret,)
        return (self.secret, self.previous_secret)
