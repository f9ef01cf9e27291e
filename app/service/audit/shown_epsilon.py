"""The epsilon that a statement shows beside a limit."""

from app.ledger.accounts.account import Account
from app.service.audit.limit_standing import is_exceeded


def shown_epsilon(account: Account, governing: Account) -> float:
    """Compute the loss of what was charged to an account, as for releases that were fixed in advance.

    Args:
        account: the account, with all that may have been released under it as spent.
        governing: the nearest account with a limit, whose delta counts; its limit is no less, unless it is exceeded.

    Returns:
        Epsilon in nats, infinity allowed.
    """
    assert governing.limit is not None, "it governs by its limit"
    found = account.epsilon_rdp(governing.limit.delta)
    return found if is_exceeded(governing) else min(found, governing.limit.epsilon)
