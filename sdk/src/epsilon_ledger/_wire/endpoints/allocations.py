"""Allocations of accounts, and the reservations that wait for them."""

from collections.abc import Sequence
from http import HTTPStatus

from epsilon_ledger._wire.allocation_models import AccountAllocation, AccountQueue, Allocation, WaitPreview
from epsilon_ledger._wire.endpoints.etags import tag_of
from epsilon_ledger._wire.events import EventCount
from epsilon_ledger._wire.governance_models import Proposal
from epsilon_ledger._wire.members import wire_events
from epsilon_ledger._wire.references import find_account_id
from epsilon_ledger._wire.requests import RequestFlow, get, path, post, put


def get_allocation(account: str) -> RequestFlow[AccountAllocation]:
    """Get how an account shares out its limit among reservations, and what of it is usable now.

    Args:
        account: id or path of a population or a budget.

    Returns:
        The allocation; `reservations_only` is False if there is none.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    return (yield get(f"{path('accounts', account_id)}/allocation")).read(AccountAllocation)


def replace_allocation(
    account: str, allocation: Allocation | None, *, reason: str, if_match: AccountAllocation | str | None = None
) -> RequestFlow[AccountAllocation | Proposal]:
    """Replace how an account shares out its limit among reservations; what is reserved stays reserved.

    An account with an allocation admits reserved steps only. One that may unlock the limit earlier is proposed.

    Args:
        account: id or path of a population or a budget.
        allocation: all of it, `{**seen.allocation, "rule": "smallest_share"}` for instance; None: steps need no
            reservation.
        reason: for the audit log.
        if_match: what was read before, or its `etag`: if the allocation has changed since, nothing happens. None:
            whatever the allocation is now.

    Returns:
        The new allocation; or the proposal, which another person approves.

    Raises:
        PreconditionFailedError: the allocation has changed since it was read.
        LedgerError: it was not replaced, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    body = {"allocation": allocation, "reason": reason}
    request = put(f"{path('accounts', account_id)}/allocation", body, if_match=tag_of(if_match))
    response = yield request
    if response.status == HTTPStatus.CREATED:
        return response.read(Proposal)
    return response.read(AccountAllocation)


def get_queue(account: str) -> RequestFlow[AccountQueue]:
    """Get the reservations that wait for an account or for one under it, the next one first.

    Args:
        account: id or path of a population or a budget.

    Returns:
        The reservations, and what each of them waits for; at most 100.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    return (yield get(f"{path('accounts', account_id)}/queue")).read(AccountQueue)


def preview_wait(account: str, events: Sequence[EventCount]) -> RequestFlow[WaitPreview]:
    """Preview a reservation of a new run under an account; nothing is recorded or reserved.

    Args:
        account: id or path of a population or a budget.
        events: in order, each with its count.

    Returns:
        Whether it would be reserved at once, or what it would wait for.

    Raises:
        LedgerError: the account does not exist, a policy forbids an event, or no response arrived.
    """
    body = {"events": wire_events(events, "events")}
    account_id = yield from find_account_id(account)
    answer = yield post(f"{path('accounts', account_id)}/queue/what-if", body)
    return answer.read(WaitPreview)
