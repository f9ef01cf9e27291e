"""Populations and the budgets beneath them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.accounting.events import NeighboringRelation
from app.accounting.orders import GRID_VERSION
from app.ledger.accounts import MAX_DEPTH, Account, AccountKind, StepEvent, check_limit, zero_curve
from app.ledger.composition import budgets_of
from app.ledger.conformity import require_limit_allowed, require_relation, require_steps, sources_of
from app.ledger.errors import InvalidInputError, NameTakenError, NotFoundError
from app.ledger.filters import FilterKind, Limit
from app.ledger.roles import Permission
from app.ledger.windows import ALWAYS, Window
from app.persistence.repositories import accounts, locks, parts, tenants
from app.persistence.repositories.accounts import AccountRecord, Population, Wanted, planned_sha256
from app.persistence.repositories.parts import Block
from app.service.acts import Act
from app.service.call import Call
from app.service.idempotency import Answer, Identity, create_once
from app.service.ids import new_id
from app.service.parts import AccountView, Parallel, attested, check_part, part_facts, viewed
from app.service.pricing import Prepared

ID_PREFIXES = {AccountKind.POPULATION: "pop", AccountKind.BUDGET: "bud", AccountKind.RUN: "run"}


@dataclass(frozen=True, slots=True)
class Terms:
    """What an account is opened with.

    Args:
        name: unique among its siblings, for populations and budgets.
        limit: None only for a run.
        filter: how the limit is enforced.
        planned: the workload that adaptive weights are chosen for.
        parallel: what is said of its children, if they are disjoint parts.
        window: when something may be charged to it.
        block: the data that it stands for, if it is a block.
    """

    name: str
    limit: Limit | None
    filter: FilterKind
    planned: tuple[StepEvent, ...]
    parallel: Parallel | None = None
    window: Window = ALWAYS
    block: Block | None = None


def create_population(
    call: Call,
    terms: Terms,
    population: Population,
    identity: Identity,
    render: Callable[[AccountView], str],
) -> Answer:
    """Open the account of the people whose data is used.

    Args:
        call: needs TREE, in the whole organisation.
        terms: name, limit, filter, planned workload.
        population: privacy unit, neighboring relation, size.
        identity: of the request.
        render: makes the reply's body.

    Returns:
        The reply.

    Raises:
        NameTakenError: the organisation has a population of this name.
        InvalidInputError: its parts are not attested as its relation needs.
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: nothing could ever be admitted.
        UnsupportedEventError: a planned event has no sound bound under the relation.
        PolicyViolationError: a policy does not allow it.
    """
    call.require_everywhere(Permission.TREE)

    def create(tx: Connection, ready: Prepared) -> str:
        proposed = new_account(tx, call, AccountKind.POPULATION, None, terms, population.relation)
        account = checked(proposed, population, ready)
        require_opening([account], population)
        return render(_open(tx, call, account, [], population, terms))

    return create_once(call, identity, create)


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
        return render(open_budget(tx, call, parent, terms, ready))

    return create_once(call, identity, create)


def open_budget(tx: Connection, call: Call, parent: str, terms: Terms, ready: Prepared) -> AccountView:
    """Open a budget in a transaction that has locked the organisation; as `create_budget`, by a caller who may."""
    above = find_parent(tx, call, parent)
    if above.account.depth >= MAX_DEPTH:
        raise InvalidInputError(f"Budgets lie at most {MAX_DEPTH} deep beneath their population.")
    check_part(tx, call, above.account, terms.block)
    ancestors = accounts.path_of(tx, call.organisation_id, above.account.id)
    proposed = new_account(tx, call, AccountKind.BUDGET, above.account, terms, above.account.relation)
    account = checked(proposed, above.population, ready)
    path = [record.account for record in ancestors]
    require_opening([*path, account], above.population)
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


def require_reach(tx: Connection, call: Call, account_id: str) -> None:
    """Let the caller pass to an account that lies on or beneath the one to which its role is bound.

    Raises:
        InsufficientScopeError: it lies elsewhere.
    """
    if call.caller.scope is not None:
        call.require_reach(locks.ids_above(tx, call.organisation_id, account_id))


def require_every_budget(tx: Connection, call: Call, account_id: str) -> None:
    """Let the caller decide about a run only if every budget that it charges is in the caller's reach, not just one.

    Raises:
        InsufficientScopeError: one of them lies elsewhere.
    """
    if call.caller.scope is None:
        return
    path = [record.account for record in accounts.path_of(tx, call.organisation_id, account_id)]
    budgets = budgets_of(path) if path[-1].kind is AccountKind.RUN else ()
    if len(budgets) > 1:
        for budget in budgets:
            require_reach(tx, call, budget.id)


def find_account(tx: Connection, call: Call, reference: str) -> AccountRecord:
    """The account that a request names: a population or a budget by id or path, or a run by id.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: it is out of the caller's reach.
    """
    found = accounts.find(tx, call.organisation_id, reference)
    if found is None:
        return find_parent(tx, call, reference)
    require_reach(tx, call, found.account.id)
    return found


def find_path_of(tx: Connection, call: Call, reference: str) -> list[AccountRecord]:
    """An account that a request names and all accounts above it, locked if the transaction writes.

    Args:
        tx: the caller's transaction.
        call: who asks.
        reference: as of `find_account`; by its id, the account is read once.

    Returns:
        None above one beneath it; the account is the last.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: it is out of the caller's reach.
    """
    path = accounts.path_of(tx, call.organisation_id, reference)
    if not path:
        path = accounts.path_of(tx, call.organisation_id, find_parent(tx, call, reference).account.id)
    call.require_reach([record.account.id for record in path])
    return path


def find_parent(tx: Connection, call: Call, reference: str) -> AccountRecord:
    """The population or budget that a request names.

    Args:
        tx: the caller's transaction.
        call: who asks.
        reference: id, or path of names such as "mimic/icu-team".

    Returns:
        The account.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: it is out of the caller's reach.
    """
    found = accounts.find(tx, call.organisation_id, reference)
    if found is None or found.account.kind is AccountKind.RUN:
        found = accounts.find_by_path(tx, call.organisation_id, reference)
    if found is None:
        raise NotFoundError(
            f"There is no population or budget {reference!r} in your organisation; "
            "give its id, or its path such as mimic/icu-team."
        )
    require_reach(tx, call, found.account.id)
    return found


def new_account(
    tx: Connection,
    call: Call,
    kind: AccountKind,
    parent: Account | None,
    terms: Terms,
    relation: NeighboringRelation,
    *,
    depth: int = 0,
) -> Account:
    """A new account, nothing spent.

    Args:
        tx: the transaction in which it will be appended.
        call: who asks.
        kind: population, budget or run.
        parent: the account above; None for a population.
        terms: what it is opened with.
        relation: the population's.
        depth: beneath which it has to lie, if it is not its parent's: that of the deepest account above it.

    Returns:
        The account, not yet in the database.
    """
    prefix = ID_PREFIXES[kind]
    account_id = new_id(prefix, call.now, accounts.newest_id(tx, call.organisation_id, prefix))
    grid_version = parent.grid_version if parent else GRID_VERSION  # one charge is added to every curve of a path
    return Account(
        id=account_id,
        kind=kind,
        parent_id=parent.id if parent else None,
        population_id=parent.population_id if parent else account_id,
        name=terms.name,
        path=f"{parent.path}/{terms.name}" if parent else terms.name,
        depth=max(parent.depth, depth) + 1 if parent else 0,
        relation=relation,
        limit=terms.limit,
        filter=terms.filter,
        planned=terms.planned,
        weights=None,
        spent=zero_curve(grid_version),
        held=zero_curve(grid_version),
        grid_version=grid_version,
        partitions_per_unit=terms.parallel.partitions_per_unit if terms.parallel else None,
        window=terms.window,
        house_policy=None if parent else tenants.policy(tx, call.organisation_id)[0],
    )


def checked(account: Account, population: Population, ready: Prepared) -> Account:
    """Refuse terms that protect nobody, admit nothing, or plan what has no sound bound.

    Args:
        account: as proposed.
        population: at the root.
        ready: has the curves of what is planned.

    Returns:
        The account; with the weights of its filter, if it says what it plans.

    Raises:
        UnpreparedError: a planned event was not computed yet; caught by `prepared`.
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: nothing could ever be admitted.
        InvalidInputError: what is planned could never be admitted, not even in part of its size.
    """
    if account.limit is not None:
        check_limit(account.limit, account.filter, population.size, account.grid_version)
    ready.require(account, [step.event for step in account.planned])
    workload = zero_curve(account.grid_version)
    for step in account.planned:
        workload = workload + ready.curve(account, step.event).times(step.count)
    if account.planned and workload.is_exhausted:
        raise InvalidInputError(
            "The planned workload loses everything at every order: no filter can be tuned for it. Plan more noise or "
            "fewer repetitions, or leave `planned` out."
        )
    return account if workload.is_zero else account.with_workload(workload)


def require_opening(path: Sequence[Account], population: Population) -> None:
    """Let an account be opened that every policy above it allows.

    Args:
        path: its ancestors, root first, and itself.
        population: at the root.

    Raises:
        PolicyViolationError: the relation, the limit's delta, or what is planned is not allowed.
    """
    sources, account = sources_of(path), path[-1]
    require_relation(sources, population.relation)
    if account.limit is not None:
        require_limit_allowed(sources, account.limit, population.size)
    require_steps(sources, population.relation, [step.event for step in account.planned])


def _open(
    tx: Connection,
    call: Call,
    account: Account,
    ancestors: list[Account],
    population: Population | None,
    terms: Terms,
) -> AccountView:
    said = None if terms.parallel is None else attested(call, terms.parallel, account.relation)
    if accounts.find_by_path(tx, call.organisation_id, account.path) is not None:
        raise NameTakenError(f"There is {account.path!r} already; choose another name.")
    accounts.add(tx, call.organisation_id, account, ancestors, population, call.now)
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


def account_facts(account: Account, population: Population | None) -> dict[str, object]:
    """What the chain keeps of an account: all that decides what it lets through.

    Args:
        account: as it is opened.
        population: given for a population only.
    """
    facts: dict[str, object] = {
        "path": account.path,
        "parent": account.parent_id,
        "limit": account.limit and {"epsilon": account.limit.epsilon, "delta": account.limit.delta},
        "filter": str(account.filter),
        "planned_sha256": planned_sha256(account.planned),
        "grid_version": account.grid_version,
    }
    if account.partitions_per_unit is not None:
        facts["max_partitions_per_unit"] = account.partitions_per_unit
    if account.window is not ALWAYS:
        facts["opens_at"] = account.window.opens_at and account.window.opens_at.isoformat()
        facts["closes_at"] = account.window.closes_at and account.window.closes_at.isoformat()
    if population is not None:
        facts["privacy_unit"] = population.privacy_unit
        facts["neighboring_relation"] = str(population.relation)
        facts["size"] = population.size
    return facts
