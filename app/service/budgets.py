"""Populations and the budgets beneath them."""

from collections.abc import Callable

from sqlalchemy import Connection

from app.ledger.accounts import MAX_DEPTH, Account, AccountKind
from app.ledger.errors import InvalidInputError, NameTakenError, NotFoundError
from app.ledger.lookalikes import look_alike
from app.ledger.roles import Permission
from app.persistence.repositories import accounts, keeping, parts
from app.persistence.repositories.accounts import AccountRecord, Population, Wanted
from app.service.acts import Act
from app.service.asking.call import Call
from app.service.finding import find_parent, require_reach
from app.service.idempotency import Answer, Identity, create_once
from app.service.parts import AccountView, attested, check_part, part_facts, viewed
from app.service.pricing import Prepared
from app.service.terms import Terms, account_facts, checked, new_account, require_opening


def check_population(tx: Connection, call: Call, terms: Terms, population: Population, ready: Prepared) -> Account:
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
    account = checked(proposed, population, ready)
    require_opening([account], population)
    if terms.parallel is not None:
        attested(call, terms.parallel, population.relation)
    require_name_free(tx, call, None, terms.name)
    return account


def open_population(
    tx: Connection,
    call: Call,
    terms: Terms,
    population: Population,
    ready: Prepared,
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
    call: Call, parent: str, terms: Terms, identity: Identity, render: Callable[[AccountView], str]
) -> Answer:
    """Open a budget beneath a population or another budget.

    Args:
        call: needs TREE.
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
    call.require(Permission.TREE)

    def create(tx: Connection, ready: Prepared) -> str:
        return render(open_budget(tx, call, find_parent(tx, call, parent), terms, ready))

    return create_once(call, identity, create)


def open_budget(tx: Connection, call: Call, above: AccountRecord, terms: Terms, ready: Prepared) -> AccountView:
    """Open a budget in a transaction that has locked the organisation; as `create_budget`, by a caller who may."""
    if above.account.depth >= MAX_DEPTH:
        raise InvalidInputError(f"Budgets lie at most {MAX_DEPTH} deep beneath their population.")
    check_part(tx, call, above.account, terms.block)
    ancestors = accounts.path_of(tx, call.organisation_id, above.account.id)
    proposed = new_account(tx, call, AccountKind.BUDGET, above.account, terms, above.account.relation)
    account = checked(proposed, above.population, ready)
    path = [record.account for record in ancestors]
    require_opening([*path, account], above.population)
    require_name_free(tx, call, above.account.id, terms.name)
    return _open(tx, call, account, path, None, terms)


def get_account(call: Call, kind: AccountKind, account_id: str) -> AccountView:
    """Read a population or a budget.

    Args:
        call: needs READ.
        kind: population or budget.
        account_id: its id.

    Returns:
        The account.

    Raises:
        NotFoundError: the organisation has none of this kind and id.
        InsufficientScopeError: it is out of the caller's reach.
    """
    call.require(Permission.READ)
    with call.db.read(call.organisation_id) as tx:
        found = accounts.find(tx, call.organisation_id, account_id)
        if found is None or found.account.kind is not kind:
            raise NotFoundError(f"There is no {kind} {account_id!r} in your organisation.")
        require_reach(tx, call, found.account.id)
        [view] = viewed(tx, call, [found])
    return view


def list_accounts(
    call: Call,
    kind: AccountKind,
    *,
    parent: str | None = None,
    path: str | None = None,
    after: str | None,
    limit: int,
) -> list[AccountView]:
    """Read populations or budgets in the order of their creation, those within the caller's reach.

    Args:
        call: needs READ.
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
    call.require(Permission.READ)
    with call.db.read(call.organisation_id) as tx:
        parent_id = None if parent is None else find_parent(tx, call, parent).account.id
        wanted = Wanted(kind, call.caller.scope, parent_id, path)
        found = accounts.page(tx, call.organisation_id, wanted, after=after, limit=limit)
        return viewed(tx, call, found)


def require_name_free(tx: Connection, call: Call, parent_id: str | None, name: str) -> None:
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
    call: Call,
    account: Account,
    ancestors: list[Account],
    population: Population | None,
    terms: Terms,
    *,
    attested_by: str | None = None,
) -> AccountView:
    said = None if terms.parallel is None else attested(call, terms.parallel, account.relation, attested_by)
    keeping.add(tx, call.organisation_id, account, ancestors, population, call.now)
    if said is not None:
        parts.attest(tx, call.organisation_id, account.id, said)
    if terms.block is not None:
        parts.add_block(tx, call.organisation_id, account.id, terms.block)
    opened = accounts.find(tx, call.organisation_id, account.id)
    assert opened is not None
    [view] = viewed(tx, call, [opened])
    facts = account_facts(account, population) | part_facts(said, terms.block)
    call.record(tx, Act(f"{account.kind}.created", account.id, after=facts))
    return view
