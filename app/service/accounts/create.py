"""Populations and the budgets beneath them."""

from collections.abc import Callable

from sqlalchemy import Connection

from app.ledger.accounts import MAX_DEPTH, Account, AccountKind
from app.ledger.audit_actions import AuditAction
from app.ledger.errors import InvalidInputError, NameTakenError, NotFoundError
from app.ledger.lookalikes import look_alike
from app.ledger.permissions import Permission
from app.persistence.repositories import account_writes, accounts, partitions
from app.persistence.repositories.accounts import AccountFilter, AccountRecord, Population
from app.service.accounts.lookup import find_parent, require_reach
from app.service.accounts.partitions import AccountView, account_views, build_attestation, check_part, partition_payload
from app.service.accounts.spec import AccountSpec, account_audit_payload, new_account, require_dates, validate_spec
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.idempotency import IdempotentRequest, StoredResponse, run_idempotent


def check_population(
    tx: Connection, call: RequestContext, terms: AccountSpec, population: Population, ready: PrecomputedCosts
) -> Account:
    """Let pass the terms of a population that could be opened now.

    Args:
        tx: a writer's transaction, which has locked the organisation.
        call: who opens it, or proposes it.
        terms: name, limit, filter, planned workload.
        population: privacy unit, neighboring relation, size.
        ready: has the curves of what is planned.

    Returns:
        Its account, not yet in the database.

    Raises:
        NameTakenError: the organisation has a population of this name, or of one that looks like it.
        InvalidInputError: its parts are not attested as its relation needs.
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: nothing could ever be admitted.
        UnsupportedEventError: a planned event has no sound bound under the relation.
        PolicyViolationError: a policy does not allow it.
    """
    proposed = new_account(tx, call, AccountKind.POPULATION, None, terms, population.relation)
    account = validate_spec(proposed, population, ready)
    require_dates([account], population)
    if terms.parallel is not None:
        build_attestation(call, terms.parallel, population.relation)
    require_name_free(tx, call, None, terms.name)
    return account


def open_population(
    tx: Connection,
    call: RequestContext,
    terms: AccountSpec,
    population: Population,
    ready: PrecomputedCosts,
    *,
    attested_by: str | None = None,
) -> AccountView:
    """Open a population in a transaction that has locked the organisation; as `check_population`, which it does before.

    Args:
        tx: the transaction.
        call: who opens it.
        terms: name, limit, filter, planned workload.
        population: privacy unit, neighboring relation, size.
        ready: has the curves of what is planned.
        attested_by: who has attested that its parts are disjoint; None: the caller.

    Returns:
        The population.
    """
    account = check_population(tx, call, terms, population, ready)
    return _open(tx, call, account, [], population, terms, attested_by=attested_by)


def create_budget(
    call: RequestContext,
    parent: str,
    terms: AccountSpec,
    identity: IdempotentRequest,
    render: Callable[[AccountView], str],
) -> StoredResponse:
    """Open a budget beneath a population or another budget.

    Args:
        call: needs ACCOUNT_MANAGE.
        parent: id, or path of names.
        terms: name, limit, filter, planned workload.
        identity: of the request.
        render: makes the reply's body.

    Returns:
        The reply.

    Raises:
        NotFoundError: there is no such parent.
        InvalidInputError: the tree would become too deep or the parent has too many parts, its own parts are not
            attested as its relation needs, or its block is none or overlaps another one.
        NameTakenError: the parent has a budget of this name.
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: nothing could ever be admitted.
        UnsupportedEventError: a planned event has no sound bound under the relation.
        PolicyViolationError: a policy does not allow it.
    """
    call.require_permission(Permission.ACCOUNT_MANAGE)

    def create(tx: Connection, ready: PrecomputedCosts) -> str:
        return render(open_budget(tx, call, find_parent(tx, call, parent), terms, ready))

    return run_idempotent(call, identity, create)


def open_budget(
    tx: Connection, call: RequestContext, above: AccountRecord, terms: AccountSpec, ready: PrecomputedCosts
) -> AccountView:
    """Open a budget in a transaction that has locked the organisation; as `create_budget`, by a caller who may."""
    if above.account.depth >= MAX_DEPTH:
        raise InvalidInputError(f"Budgets lie at most {MAX_DEPTH} deep beneath their population.")
    check_part(tx, call, above.account, terms.block)
    ancestors = accounts.path_of(tx, call.organisation_id, above.account.id)
    proposed = new_account(tx, call, AccountKind.BUDGET, above.account, terms, above.account.relation)
    account = validate_spec(proposed, above.population, ready)
    path = [record.account for record in ancestors]
    require_dates([*path, account], above.population)
    require_name_free(tx, call, above.account.id, terms.name)
    return _open(tx, call, account, path, None, terms)


def get_account(call: RequestContext, kind: AccountKind, account_id: str) -> AccountView:
    """Read a population or a budget.

    Args:
        call: needs LEDGER_READ.
        kind: population or budget.
        account_id: its id.

    Returns:
        The account.

    Raises:
        NotFoundError: the organisation has none of this kind and id.
        InsufficientScopeError: it is out of the caller's reach.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        found = accounts.find(tx, call.organisation_id, account_id)
        if found is None or found.account.kind is not kind:
            raise NotFoundError(f"There is no {kind} {account_id!r} in your organisation.")
        require_reach(tx, call, found.account.id)
        [view] = account_views(tx, call, [found])
    return view


def list_accounts(
    call: RequestContext,
    kind: AccountKind,
    *,
    parent: str | None = None,
    path: str | None = None,
    after: str | None,
    limit: int,
) -> list[AccountView]:
    """Read populations or budgets in the order of their creation, those within the caller's reach.

    Args:
        call: needs LEDGER_READ.
        kind: population or budget.
        parent: only those directly beneath this account (id or path).
        path: only the one at this path.
        after: only those after this id.
        limit: how many at the most.

    Returns:
        The accounts.

    Raises:
        NotFoundError: there is no such parent.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        parent_id = None if parent is None else find_parent(tx, call, parent).account.id
        wanted = AccountFilter(kind, call.principal.scope, parent_id, path)
        found = accounts.page(tx, call.organisation_id, wanted, after=after, limit=limit)
        return account_views(tx, call, found)


def require_name_free(tx: Connection, call: RequestContext, parent_id: str | None, name: str) -> None:
    """Let an account have a name that nobody takes for that of another one beside it.

    Args:
        tx: a writer's transaction, which has locked the organisation: no other name is taken meanwhile.
        call: who opens it.
        parent_id: the account above; None: it is a population.
        name: of the account.

    Raises:
        NameTakenError: another one has this name, or one that looks like it.
    """
    others = accounts.names_beside(tx, call.organisation_id, parent_id)
    if name in others:
        raise NameTakenError(f"There is {name!r} already; choose another name.", name=name)
    for other in others:
        if look_alike(name, other):
            raise NameTakenError(
                f"{name!r} differs from {other!r}, which is there already, only by case, separators or characters that "
                "look alike; choose a name that nobody takes for it.",
                name=other,
            )


def _open(
    tx: Connection,
    call: RequestContext,
    account: Account,
    ancestors: list[Account],
    population: Population | None,
    terms: AccountSpec,
    *,
    attested_by: str | None = None,
) -> AccountView:
    said = None if terms.parallel is None else build_attestation(call, terms.parallel, account.relation, attested_by)
    account_writes.add(tx, call.organisation_id, account, ancestors, population, call.now)
    if said is not None:
        partitions.attest(tx, call.organisation_id, account.id, said)
    if terms.block is not None:
        partitions.add_block(tx, call.organisation_id, account.id, terms.block)
    opened = accounts.find(tx, call.organisation_id, account.id)
    assert opened is not None
    [view] = account_views(tx, call, [opened])
    facts = account_audit_payload(account, population) | partition_payload(said, terms.block)
    call.record(tx, AuditEvent(AuditAction(f"{account.kind}.created"), account.id, after=facts))
    return view
