"""What populations, budgets and runs have in common: the archive, histories and their charts."""

from typing import Literal, TypeAlias

from epsilon_ledger._wire.histories import AccountHistory
from epsilon_ledger._wire.metadata import ArchivedAccount
from epsilon_ledger._wire.references import find_account_id
from epsilon_ledger._wire.requests import RequestFlow, get, get_bytes, path, post

Theme: TypeAlias = Literal["light", "dark"]


def archive_account(account: str, *, reason: str | None = None) -> RequestFlow[ArchivedAccount]:
    """Archive an account: it and everything under it is hidden from lists and read-only; its charges remain.

    Args:
        account: id or path of a population, a budget or a run.
        reason: for the audit log.

    Returns:
        The account, and since when it is archived.

    Raises:
        AccountStateConflictError: a run under it has not ended.
        LedgerError: it does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    return (yield post(f"{path('accounts', account_id)}/archive", {"reason": reason})).read(ArchivedAccount)


def unarchive_account(account: str, *, reason: str | None = None) -> RequestFlow[ArchivedAccount]:
    """Show an archived account in lists again, and allow what archiving it prevented.

    Args:
        account: as in `archive_account`.
        reason: for the audit log.

    Returns:
        The account.

    Raises:
        ApprovalRequiredError: it is a population or a budget, which is unarchived when another person approves that.
        LedgerError: it does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    answer = yield post(f"{path('accounts', account_id)}/unarchive", {"reason": reason})
    return answer.read(ArchivedAccount, until_approved=f"{account} stays archived")


def get_account_history(account: str, *, max_points: int = 200) -> RequestFlow[AccountHistory]:
    """Get the epsilon of a population or a budget over time.

    Args:
        account: its id or path.
        max_points: maximum number of points, in [2, 500].

    Returns:
        The history, with the shares of the children; `to_pandas` makes a data frame of it.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    request = get(f"{path('accounts', account_id)}/history", {"max_points": max_points})
    return (yield request).read(AccountHistory)


def export_account_history(account: str, *, max_points: int | None = None) -> RequestFlow[bytes]:
    """Export the epsilon of a population or a budget over time as CSV.

    Args:
        account: its id or path.
        max_points: maximum number of points; None: the ledger's default.

    Returns:
        CSV in UTF-8, a row for each point.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    query = {"max_points": max_points}
    return (yield get_bytes(f"{path('accounts', account_id)}/history.csv", query)).content


def get_account_history_svg(
    account: str, *, theme: Theme = "light", width: int = 760, height: int = 340
) -> RequestFlow[bytes]:
    """Get the chart of an account's history as SVG.

    Args:
        account: its id or path.
        theme: dark on light, or light on dark.
        width: in pixels, in [200, 2000].
        height: in pixels, in [120, 1200].

    Returns:
        The image.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    query = {"theme": theme, "width": width, "height": height}
    return (yield get_bytes(f"{path('accounts', account_id)}/history.svg", query)).content
