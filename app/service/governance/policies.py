"""Policies: an organisation's, and those of its populations and budgets."""

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from app.ledger.accounts import Account
from app.ledger.conformity import sources_of
from app.ledger.errors import InsufficientScopeError
from app.ledger.policies import NOTHING_SAID, ORGANISATION, Policy, Source, asks_fewer, effective, facts_of
from app.ledger.roles import Permission, Role
from app.persistence.repositories import accounts, keeping, tenants
from app.service.acts import Act
from app.service.asking.call import Call
from app.service.finding import find_parent
from app.service.governance.preconditions import require_seen


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy as it is read.

    Args:
        subject: the id of the account, or of the organisation.
        path: of the account, or "organisation".
        policy: as it was set there.
        effective: what holds there: the strictest of this one and of all above it.
        revision: counts the changes of this policy.
    """

    subject: str
    path: str
    policy: Policy
    effective: Policy
    revision: int

    @property
    def tag(self) -> str:
        """The entity tag of the policy itself."""
        return f'"{self.subject}-policy-{self.revision}"'


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """Another policy.

    Args:
        account: id, or path of names, of a population or a budget; None: the organisation's is meant.
        policy: the whole of it.
        reason: why.
        tag: the entity tag of the policy that the asker has seen; None: it sent none.
    """

    account: str | None
    policy: Policy
    reason: str
    tag: str | None


def read_policy(call: Call, account: str | None) -> PolicyRecord:
    """Read a policy, and what holds there.

    Args:
        call: needs READ.
        account: id, or path of names; None: the organisation's.

    Returns:
        The policy; one that says nothing, if none was set.

    Raises:
        NotFoundError: there is no such population or budget.
        InsufficientScopeError: it is out of the caller's reach.
    """
    call.require(Permission.READ)
    with call.db.read(call.organisation_id) as tx:
        if account is None:
            return _house(tx, call)
        found = find_parent(tx, call, account).account
        return _of_account(_path(tx, call, found.id))


def change_policy(call: Call, request: PolicyRequest) -> PolicyRecord:
    """Put a policy in the place of the one before; it holds from the next step on.

    Args:
        call: needs POLICY, for the organisation's in the whole organisation.
        request: account, policy, reason, entity tag.

    Returns:
        The policy afterwards. If it is the one before, nothing is changed or recorded.

    Raises:
        NotFoundError: there is no such population or budget.
        InsufficientScopeError: the caller's role does not allow it, or the account is out of its reach; or fewer
            persons would be asked than before, and the caller is no admin.
        PreconditionRequiredError: the request names no entity tag.
        VersionConflictError: the policy was changed since the asker has seen it.
    """
    if request.account is None:
        call.require_everywhere(Permission.POLICY)
    else:
        call.require(Permission.POLICY)

    def change() -> PolicyRecord:
        with call.db.write(call.organisation_id) as tx:
            tenants.lock(tx, call.organisation_id)
            before = _house(tx, call) if request.account is None else _found(tx, call, request.account)
            require_seen("policy", before.tag, request.tag, policy_revision=before.revision)
            if before.policy == request.policy:
                return before
            after = _set_house(tx, call, request) if request.account is None else _set(tx, call, before, request)
            _require_no_fewer(call, before, after)
            was, now = ({"policy": facts_of(each.policy), "revision": each.revision} for each in (before, after))
            call.record(tx, Act("policy.changed", after.subject, was, now, request.reason))
            return after

    return call.db.retried(change)


def _require_no_fewer(call: Call, before: PolicyRecord, after: PolicyRecord) -> None:
    """Let nobody who is held by the word of a second person do away with it, raise a limit alone, and put it back.

    Raises:
        InsufficientScopeError: the policy asks fewer persons than before, and the caller is no admin.
    """
    rule = asks_fewer(before.effective, after.effective)
    if rule is not None and call.caller.role is not Role.ADMIN:
        raise InsufficientScopeError(
            f"By {rule} fewer things would take a second person's word than before. That is for an admin to set, who "
            "is none of those whom it holds.",
            rule=rule,
        )


def _house(tx: Connection, call: Call) -> PolicyRecord:
    policy, revision = tenants.policy(tx, call.organisation_id)
    said = policy or NOTHING_SAID
    return PolicyRecord(call.organisation_id, ORGANISATION, said, effective((Source(ORGANISATION, said),)), revision)


def _found(tx: Connection, call: Call, reference: str) -> PolicyRecord:
    return _of_account(_path(tx, call, find_parent(tx, call, reference).account.id))


def _path(tx: Connection, call: Call, account_id: str) -> list[Account]:
    return [record.account for record in accounts.path_of(tx, call.organisation_id, account_id)]


def _of_account(path: list[Account]) -> PolicyRecord:
    own = path[-1]
    holds = effective(sources_of(path))
    return PolicyRecord(own.id, own.path, own.policy or NOTHING_SAID, holds, own.policy_revision)


def _set(tx: Connection, call: Call, before: PolicyRecord, request: PolicyRequest) -> PolicyRecord:
    *above, own = _path(tx, call, before.subject)
    changed = replace(own, policy=request.policy, policy_revision=own.policy_revision + 1, version=own.version + 1)
    keeping.set_policy(tx, call.organisation_id, changed, call.now)
    return _of_account([*above, changed])


def _set_house(tx: Connection, call: Call, request: PolicyRequest) -> PolicyRecord:
    """Write the organisation's policy, and to each of its populations, whose locked rows tell it to every step."""
    revision = tenants.policy(tx, call.organisation_id)[1] + 1
    tenants.set_policy(tx, call.organisation_id, request.policy, revision)
    for population in accounts.populations_of(tx, call.organisation_id):
        changed = replace(population, house_policy=request.policy, version=population.version + 1)
        keeping.set_policy(tx, call.organisation_id, changed, call.now)
    return _house(tx, call)
