"""Compose the loss of an account from its descendants.

By default losses add up. The children of a *parallel* account hold disjoint partitions of its population: a unit loses
at most the sum over the partitions that hold its data (ADR 0017).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.accounting.curves import RdpCurve
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.errors import InvalidInputError
from app.ledger.filter.parallel_exposure import ParallelExposure, compose_partitions, largest, without
from app.ledger.settings.windows import ALWAYS

REMOVAL_IS_BOUNDED: Final = "removal_is_bounded"
"""Attests that replaced units may leave their partitions, and that the events there bound removal."""

MAX_PARTITIONS = 64
"""Maximum number of partitions of a parallel account."""

MAX_BUDGETS = 8
"""Maximum number of budgets that a run charges."""


@dataclass(frozen=True, slots=True)
class _ChargeEffect:
    """The effect of a charge on an account.

    `parallel` is the topmost parallel account on the charge's way, possibly itself, and `inner` its growth; None:
    losses add up.
    """

    exposure: ParallelExposure
    parallel: Account | None = None
    inner: ParallelExposure | None = None


def exposed(path: Sequence[Account], parts: Iterable[Account]) -> tuple[Account, ...]:
    """Attach to each account its exposure to charges of the run.

    `path` has the run and all accounts above it, ancestors first; `parts` the children of every parallel account of the
    path. The accounts are unchanged if none is parallel.
    """
    if all(account.partitions_per_unit is None for account in path):
        return tuple(path)
    on_path = {account.id for account in path}
    others: dict[str, list[tuple[RdpCurve, RdpCurve]]] = {}
    for part in parts:
        if part.id not in on_path and part.parent_id is not None:
            others.setdefault(part.parent_id, []).append((part.spent, part.spent + part.held))
    reached: dict[str, _ChargeEffect] = {}
    grown = [path[-1]]
    for account in reversed(path[:-1]):
        under = [reached[child.id] for child in grown if child.parent_id == account.id and child.id in reached]
        here = _reached(account, under, others.get(account.id, ()))
        reached[account.id] = here
        grown.append(account if here.parallel is None else replace(account, exposure=here.exposure))
    return tuple(reversed(grown))


def _reached(
    account: Account, under: Sequence[_ChargeEffect], others: Sequence[tuple[RdpCurve, RdpCurve]]
) -> _ChargeEffect:
    """Compute a charge's effect on an account from its children's."""
    if account.parts_that_count is not None:
        assert under, "only its parts are under a parallel account"
        whole = compose_partitions([each.exposure for each in under], others, account.parts_that_count)
        return _ChargeEffect(whole, account, whole)
    through = [each for each in under if each.parallel is not None]
    if not through:
        return _ChargeEffect(ParallelExposure.sequential(account.spent, account.held))
    assert len(under) == 1, "a charge reaches what adds up in one way"
    [below] = through
    assert below.parallel is not None, "it was chosen so"
    assert below.inner is not None, "a parallel account grows somehow"
    rest = without(account.spent, below.parallel.spent)
    total = without(account.spent + account.held, below.parallel.spent + below.parallel.held)
    return _ChargeEffect(below.inner.beside(rest, total), below.parallel, below.inner)


def counting_plans(account: Account, ancestors: Sequence[Account]) -> Account:
    """Let a new account count what it uses up of its own plan, of its budgets' and of those that it is a part of.

    A budget's plan tells how much of it a child has used. Where partitions are composed, each of them and the whole
    count for every plan above.
    """
    above = [*ancestors, account]
    direct = {each.id for each in budgets_of(above)} | {account.parent_id, account.id}
    parent = next((each for each in ancestors if each.id == account.parent_id), None)
    composed = account.partitions_per_unit is not None or (
        parent is not None and parent.partitions_per_unit is not None
    )
    plans = [(each.id, each.plan) for each in above if composed or each.id in direct]
    used = {owner: (0,) * len(plan.capacity) for owner, plan in plans if plan is not None}
    return replace(account, spent=account.spent.using(used), held=account.held.using(used))


def trial_account(path: Sequence[Account], account_id: str, kind: AccountKind = AccountKind.RUN) -> Account:
    """Create an account without a limit under the last one of a path, to try what it could take."""
    parent = path[-1]
    nothing = zero_curve(parent.grid_version)
    new = replace(
        parent,
        id=account_id,
        kind=kind,
        parent_id=parent.id,
        depth=parent.depth + 1,
        limit=None,
        planned=(),
        weights=None,
        spent=nothing,
        held=nothing,
        partitions_per_unit=None,
        window=ALWAYS,
        policy=None,
        organisation_policy=None,
        allocation=None,
    )
    return counting_plans(new, path)


def recompose(account: Account, children: Iterable[Account]) -> Account:
    """Recompute a parallel account from all of its partitions."""
    assert account.parts_that_count is not None, "it has parts"
    parts = list(children)
    spent = largest([part.spent for part in parts], account.parts_that_count)
    total = largest([part.spent + part.held for part in parts], account.parts_that_count)
    return account.composed(spent, total)


def topmost_parallel_under(path: Sequence[Account], account: Account) -> Account | None:
    """Find the topmost parallel account of a path under a sequential one, if any."""
    under = {account.id}
    for other in path:
        if other.parent_id in under:
            if other.partitions_per_unit is not None:
                return other
            under.add(other.id)
    return None


def budgets_of(path: Sequence[Account]) -> tuple[Account, ...]:
    """List the budgets that a run charges, the first budget first.

    They are the accounts of a path, as for `exposed`, without another budget under them.
    """
    above = {account.parent_id for account in path[:-1]}
    found = [account for account in path[:-1] if account.id not in above]
    return tuple(sorted(found, key=lambda account: account.id != path[-1].parent_id))


def check_several(paths: Mapping[str, Sequence[Account]]) -> None:
    """Raise InvalidInputError unless one run can charge these budgets together.

    `paths` has the accounts of each budget, root first and itself last, by the budget's path of names. None may be an
    ancestor of another, and no charge may reach an account in two ways.
    """
    for name, path in paths.items():
        for other, lower in paths.items():
            if name != other and any(account.id == path[-1].id for account in lower[:-1]):
                raise InvalidInputError(
                    f"{name} lies above {other}, so a charge to {other} is charged to it anyway. Name only {other}."
                )
    ways: dict[str, tuple[str | None, str]] = {}
    for name, path in paths.items():
        through: Account | None = None
        for account in reversed(path):
            if account.partitions_per_unit is not None:
                through = account
                continue
            way = (None if through is None else through.id, name)
            first, earlier = ways.setdefault(account.id, way)
            if first != way[0]:
                raise InvalidInputError(
                    f"One run cannot charge both {earlier} and {name}: it would charge {account.path} through disjoint "
                    "parts and beside them, or through parts of two kinds. Register two runs, or name parts of one "
                    "parallel account."
                )


def require_charged_directly(account: Account, what: str) -> None:
    """Raise InvalidInputError unless runs may charge the account: a population or a budget without partitions."""
    if account.partitions_per_unit is not None:
        raise InvalidInputError(
            f"{what!r} is composed in parallel, and a run charges its parts: register the run under some of them."
        )
