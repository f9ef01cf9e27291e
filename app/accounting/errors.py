"""Errors of the accounting, each with a stable code that the service maps to an answer.

AccountingError
├── InvalidEventError         a field is missing, unknown, of the wrong type or out of bounds
├── UnsupportedEventError     a well-formed event that no proven formula here covers
├── PlanTooExpensiveError     to answer would take more work than one request may make
└── UnknownGridVersionError   a curve was stored over a grid of orders that this release does not have
"""

from typing import ClassVar


class AccountingError(Exception):
    """Base of everything that the accounting refuses; the message is a sentence for a person."""

    code: ClassVar[str] = "accounting_error"


class InvalidEventError(AccountingError):
    """The description of a mechanism is malformed or out of bounds."""

    code: ClassVar[str] = "invalid_event"


class UnsupportedEventError(AccountingError):
    """The mechanism is well described, but no proven formula here covers it."""

    code: ClassVar[str] = "unsupported_event"


class PlanTooExpensiveError(AccountingError):
    """A request asks for more work than one may make; the message says what is cheaper."""

    code: ClassVar[str] = "computation_limit_exceeded"


class UnknownGridVersionError(AccountingError):
    """The grid of orders with this version does not exist."""

    code: ClassVar[str] = "unsupported_order_grid"
