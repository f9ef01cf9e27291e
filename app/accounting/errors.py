"""Accounting errors, each with a stable code that the service maps."""

from typing import ClassVar


class AccountingError(Exception):
    """Base of every accounting error; the message is shown to the caller."""

    code: ClassVar[str] = "accounting_error"


class InvalidEventError(AccountingError):
    """An event has a missing, unknown, mistyped or out-of-bounds field."""

    code: ClassVar[str] = "invalid_event"


class UnsupportedEventError(AccountingError):
    """The event is well-formed, but no proven formula covers it."""

    code: ClassVar[str] = "unsupported_event"


class PlanTooExpensiveError(AccountingError):
    """A request exceeds the limit on computing work; the message suggests alternatives."""

    code: ClassVar[str] = "computation_limit_exceeded"


class UnknownGridVersionError(AccountingError):
    """A stored curve names a grid version that this release does not have."""

    code: ClassVar[str] = "unsupported_order_grid"
