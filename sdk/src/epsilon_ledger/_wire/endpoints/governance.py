"""Limits, policies, proposals and quarantines."""

from http import HTTPStatus

from epsilon_ledger._wire.endpoints.etags import tag_of
from epsilon_ledger._wire.governance_models import (
    AccountLimit,
    AccountPolicy,
    LimitEquivalents,
    PolicyRules,
    Proposal,
    ProposalStatus,
)
from epsilon_ledger._wire.members import wire_limit
from epsilon_ledger._wire.models import Limit
from epsilon_ledger._wire.references import find_account_id
from epsilon_ledger._wire.requests import Call, Listing, RequestFlow, get, path, post, put


def get_limit(account: str) -> RequestFlow[AccountLimit]:
    """Get the limit of an account.

    Args:
        account: id or path of a population, a budget or a run.

    Returns:
        The limit, with the number of its changes.

    Raises:
        LedgerError: the account does not exist or has no limit, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    return (yield get(f"{path('accounts', account_id)}/limit")).read(AccountLimit)


def get_limit_equivalents(account: str, *, delta: float | None = None) -> RequestFlow[LimitEquivalents]:
    """Get what the limit of an account implies: epsilon at a delta, rho and mu where they follow, and a risk.

    Args:
        account: id or path of a population, a budget or a run.
        delta: at which epsilon holds; None: the one at which the account's epsilon is shown.

    Returns:
        The equivalents.

    Raises:
        LedgerError: the account does not exist or has no limit, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    asked = {} if delta is None else {"delta": delta}
    return (yield get(f"{path('accounts', account_id)}/equivalents", asked)).read(LimitEquivalents)


def change_limit(
    account: str, limit: Limit, *, reason: str, if_match: AccountLimit | str | None = None
) -> RequestFlow[AccountLimit | Proposal]:
    """Lower a limit at once, or propose to raise it.

    Args:
        account: id or path of a population, a budget or a run.
        limit: the new limit.
        reason: for the audit log.
        if_match: what was read before, or its `etag`: if the limit has changed since, nothing happens. None: whatever
            the limit is now.

    Returns:
        The new limit; or the proposal, which another person approves.

    Raises:
        PreconditionFailedError: the limit has changed since it was read.
        PolicyViolationError: a policy forbids the limit.
        LedgerError: nothing was changed, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    url = f"{path('accounts', account_id)}/limit"
    body = {"limit": wire_limit(limit), "reason": reason}
    response = yield post(url, body, if_match=tag_of(if_match))
    if response.status == HTTPStatus.CREATED:
        return response.read(Proposal)
    return response.read(AccountLimit)


def get_policy(account: str | None = None) -> RequestFlow[AccountPolicy]:
    """Get the policy of an account, or of the organisation.

    Args:
        account: id or path of a population or a budget; None: the organisation.

    Returns:
        Its rules, and the strictest of these and of all above.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    url = yield from _policy_path(account)
    return (yield get(url)).read(AccountPolicy)


def replace_policy(
    policy: PolicyRules,
    *,
    reason: str,
    account: str | None = None,
    if_match: AccountPolicy | str | None = None,
) -> RequestFlow[AccountPolicy | Proposal]:
    """Replace a policy: stricter rules apply at once, looser ones are proposed.

    Args:
        policy: all of its rules, `{**present.policy, "max_epsilon": 2.0}` for instance.
        reason: for the audit log.
        account: id or path of a population or a budget; None: the organisation.
        if_match: what was read before, or its `etag`: if the policy has changed since, nothing happens. None: whatever
            the policy is now.

    Returns:
        The new policy; or the proposal, which another person approves.

    Raises:
        PreconditionFailedError: the policy has changed since it was read.
        LedgerError: nothing was changed, or no response arrived.
    """
    url = yield from _policy_path(account)
    body = {"policy": dict(policy), "reason": reason}
    response = yield put(url, body, if_match=tag_of(if_match))
    if response.status == HTTPStatus.CREATED:
        return response.read(Proposal)
    return response.read(AccountPolicy)


def list_proposals(
    *, status: ProposalStatus | None = None, account: str | None = None, page_size: int = 100
) -> Listing[Proposal]:
    """List proposals, newest first.

    Args:
        status: only those with this status.
        account: only those about this account, an id or a path, and accounts under it.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: the account does not exist, or no response arrived.
    """
    return Listing("v1/proposals", {"status": status, "account": account}, Proposal, page_size)


def get_proposal(proposal_id: str) -> Call[Proposal]:
    """Get a proposal.

    Args:
        proposal_id: its id.

    Returns:
        The proposal.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("proposals", proposal_id)), Proposal)


def approve_proposal(proposal_id: str, *, reason: str | None = None) -> Call[Proposal]:
    """Approve another person's proposal, which takes effect.

    Args:
        proposal_id: its id.
        reason: for the audit log.

    Returns:
        The approved proposal.

    Raises:
        PermissionDeniedError: the caller proposed it, or lacks the right to decide it.
        ProposalClosedError: it was decided before.
        PreconditionFailedError: what it would change has changed since.
        LedgerError: any other failure.
    """
    return Call(post(f"{path('proposals', proposal_id)}/approve", {"reason": reason}), Proposal)


def reject_proposal(proposal_id: str, *, reason: str | None = None) -> Call[Proposal]:
    """Reject a proposal, or withdraw an own one.

    Args:
        proposal_id: its id.
        reason: for the audit log.

    Returns:
        The rejected or withdrawn proposal.

    Raises:
        ProposalClosedError: it was decided before.
        LedgerError: any other failure.
    """
    return Call(post(f"{path('proposals', proposal_id)}/reject", {"reason": reason}), Proposal)


def lift_quarantine(account: str, *, reason: str) -> RequestFlow[Proposal]:
    """Propose to lift the quarantine of an account and of all accounts under it.

    Args:
        account: id or path of a population, a budget or a run.
        reason: for the audit log.

    Returns:
        The proposal. Its approval by another person verifies the ledger again.

    Raises:
        LedgerError: it is not quarantined, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    return (yield post(f"{path('accounts', account_id)}/quarantine/lift", {"reason": reason})).read(Proposal)


def _policy_path(account: str | None) -> RequestFlow[str]:
    if account is None:
        return "v1/policy"
    return f"{path('accounts', (yield from find_account_id(account)))}/policy"
