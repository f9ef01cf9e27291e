"""Creation and listing of populations and budgets."""

from sqlalchemy import Connection

from app.ledger.account_records import AccountFilter, AccountRecord, Population
from app.ledger.accounts import MAX_DEPTH, Account, AccountKind
from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError, NameTakenError, NotFoundError
from app.ledger.lookalikes import look_alike
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.persistence.repositories import account_writes, accounts, partitions
from app.service.accounts.lookup import find_parent, require_reach
from app.service.accounts.partitions import AccountView, account_views, build_attestation, check_part, partition_payload
from app.service.accounts.spec import AccountSpec, account_audit_payload, new_account, require_dates, validate_spec
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.idempotency import Effect


def check_population(
    tx: Connection, context: RequestContext, terms: AccountSpec, population: Population, ready: PrecomputedCosts
) -> Account:
    """Validate a population and build its account; nothing is written.

    The transaction must have locked the organisation.

    Raises:
        NameTakenError: a population has this name or a lookalike.
        InvalidInputError: the attestation of its partitions is missing or incomplete.
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: no step could ever be admitted.
        UnsupportedEventError: a planned event has no sound bound under the relation.
        PolicyViolationError: a policy forbids it.
    """
    proposed = new_account(tx, context, AccountKind.POPULATION, None, terms, population.relation)
    account = validate_spec(proposed, population, ready)
    require_dates([account], population)
    if terms.parallel is not None:
        build_attestation(context, terms.parallel, population.relation)
    require_name_free(tx, context, None, terms.name)
    return account


def open_population(
    tx: Connection,
    context: RequestContext,
    terms: AccountSpec,
    population: Population,
    ready: PrecomputedCosts,
    *,
    attested_by: str | None = None,
) -> AccountView:
    """Validate and create a population; errors as `check_population`.

    `attested_by` is the actor who attested that its partitions are disjoint; None: the caller.
    """
    account = check_population(tx, context, terms, population, ready)
    return _open(tx, context, account, [], population, terms, attested_by=attested_by)


def create_budget(context: RequestContext, parent: str, terms: AccountSpec) -> Effect[AccountView]:
    """Create a budget under a population or another budget.

    Raises:
        InvalidInputError: the tree would be too deep, the parent has too many partitions, the attestation is missing
            or incomplete, or the block is not allowed here or overlaps another one.
        NameTakenError: the parent has a budget of this name or a lookalike.
        Also those of `validate_spec` and `require_dates`.
    """
    context.require_permission(Permission.ACCOUNT_MANAGE)

    def create(tx: Connection, ready: PrecomputedCosts) -> AccountView:
        return open_budget(tx, context, find_parent(tx, context, parent), terms, ready)

    return create


def open_budget(
    tx: Connection, context: RequestContext, above: AccountRecord, terms: AccountSpec, ready: PrecomputedCosts
) -> AccountView:
    """Create a budget as `create_budget`; the organisation is locked and the caller authorised."""
    if above.account.depth >= MAX_DEPTH:
        raise InvalidInputError(f"Budgets are at most {MAX_DEPTH} levels under their population.")
    check_part(tx, context, above.account, terms.block)
    ancestors = accounts.path_of(tx, context.organisation_id, above.account.id)
    proposed = new_account(tx, context, AccountKind.BUDGET, above.account, terms, above.account.relation)
    account = validate_spec(proposed, above.population, ready)
    path = [record.account for record in ancestors]
    require_dates([*path, account], above.population)
    require_name_free(tx, context, above.account.id, terms.name)
    return _open(tx, context, account, path, None, terms)


def get_account(context: RequestContext, kind: AccountKind, account_id: str) -> AccountView:
    """Get a population or a budget by id."""
    with context.read() as tx:
        found = accounts.find(tx, context.organisation_id, account_id)
        if found is None or found.account.kind is not kind:
            raise NotFoundError(f"There is no {kind} {account_id!r} in your organisation.")
        require_reach(tx, context, found.account.id)
        [view] = account_views(tx, context, [found])
    return view


def list_accounts(
    context: RequestContext,
    kind: AccountKind,
    page: PageRequest,
    *,
    parent: str | None = None,
    path: str | None = None,
) -> Page[AccountView]:
    """List populations or budgets in the caller's scope.

    `parent`, an id or path, selects its direct children; `path` selects the one account there.
    """
    with context.read() as tx:
        parent_id = None if parent is None else find_parent(tx, context, parent).account.id
        wanted = AccountFilter(kind, context.principal.scope, parent_id, path)
        found = accounts.page(tx, context.organisation_id, wanted, page)
        return found.map(lambda records: account_views(tx, context, records))


def require_name_free(tx: Connection, context: RequestContext, parent_id: str | None, name: str) -> None:
    """Refuse the name of a sibling, or a lookalike.

    `parent_id` None: a population. The organisation must be locked, so that no sibling is created meanwhile.
    """
    others = accounts.names_beside(tx, context.organisation_id, parent_id)
    if name in others:
        raise NameTakenError(f"There is {name!r} already; choose another name.", name=name)
    for other in others:
        if look_alike(name, other):
            raise NameTakenError(
                f"{name!r} differs from {other!r}, which exists, only by case, separators or look-alike characters; "
                "choose a more distinct name.",
                name=other,
            )


def _open(
    tx: Connection,
    context: RequestContext,
    account: Account,
    ancestors: list[Account],
    population: Population | None,
    terms: AccountSpec,
    *,
    attested_by: str | None = None,
) -> AccountView:
    said = None if terms.parallel is None else build_attestation(context, terms.parallel, account.relation, attested_by)
    account_writes.add(tx, context.organisation_id, account, ancestors, population, context.now)
    if said is not None:
        partitions.attest(tx, context.organisation_id, said, account_id=account.id)
    if terms.block is not None:
        partitions.add_block(tx, context.organisation_id, terms.block, account_id=account.id)
    opened = accounts.find(tx, context.organisation_id, account.id)
    assert opened is not None
    [view] = account_views(tx, context, [opened])
    facts = account_audit_payload(account, population) | partition_payload(said, terms.block)
    context.record(tx, AuditEvent(AuditAction(f"{account.kind}.created"), account.id, after=facts))
    return view
