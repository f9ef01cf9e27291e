"""Block schedules: data blocks that the service opens by itself."""

from epsilon_ledger._wire.endpoints.etags import tag_of
from epsilon_ledger._wire.members import wire_date, wire_limit
from epsilon_ledger._wire.models import AccountBlockSchedule, BlockSchedule
from epsilon_ledger._wire.references import find_account_id
from epsilon_ledger._wire.requests import RequestFlow, delete, get, path, put


def get_block_schedule(account: str) -> RequestFlow[AccountBlockSchedule]:
    """Get the block schedule of an account.

    Args:
        account: id or path of a population or a budget.

    Returns:
        The schedule, if it has one, when the next block opens, and why a block is missing.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    url = yield from _path(account)
    return (yield get(url)).read(AccountBlockSchedule)


def replace_block_schedule(
    account: str, schedule: BlockSchedule, *, reason: str, if_match: AccountBlockSchedule | str | None = None
) -> RequestFlow[AccountBlockSchedule]:
    """Open a budget for each week, month or quarter of data when it begins; needs an admin's key.

    The blocks of periods that have begun are opened now, all or none.

    Args:
        account: id or path of a population or budget with parallel composition.
        schedule: the template of the blocks.
        reason: for the audit log.
        if_match: what was read before, or its `etag`: if the schedule has changed since, nothing happens. None:
            whatever the schedule is now.

    Returns:
        The new schedule.

    Raises:
        PreconditionFailedError: the schedule has changed since it was read.
        InvalidRequestError: a block overlaps another one of the account, or there would be too many.
        LedgerError: nothing was changed, or no response arrived.
    """
    template = {
        "period": schedule.period,
        "start": wire_date("start", schedule.start),
        "limit": wire_limit(schedule.limit),
        "prefix": schedule.prefix,
    }
    url = yield from _path(account)
    body = {"schedule": template, "reason": reason}
    return (yield put(url, body, if_match=tag_of(if_match))).read(AccountBlockSchedule)


def remove_block_schedule(
    account: str, *, reason: str, if_match: AccountBlockSchedule | str | None = None
) -> RequestFlow[None]:
    """Remove the block schedule of an account; its blocks stay. Needs an admin's key.

    Args:
        account: id or path of a population or a budget.
        reason: for the audit log.
        if_match: what was read before, or its `etag`: if the schedule has changed since, nothing happens. None:
            whatever the schedule is now.

    Raises:
        PreconditionFailedError: the schedule has changed since it was read.
        NotFoundError: the account has none.
        LedgerError: nothing was changed, or no response arrived.
    """
    url = yield from _path(account)
    yield delete(url, {"reason": reason}, if_match=tag_of(if_match))


def _path(account: str) -> RequestFlow[str]:
    return f"{path('accounts', (yield from find_account_id(account)))}/block-schedule"
