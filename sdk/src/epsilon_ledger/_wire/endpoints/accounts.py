"""Populations and budgets."""

from datetime import datetime
from typing import Literal, TypeAlias

from epsilon_ledger._wire.events import PlannedEvents
from epsilon_ledger._wire.histories import AccountHistory
from epsilon_ledger._wire.members import wire_composition, wire_data_block, wire_limit, wire_planned, wire_timestamp
from epsilon_ledger._wire.models import Budget, DataBlock, Limit, NeighboringRelation, ParallelComposition, Population
from epsilon_ledger._wire.references import find_account_id, find_budget, find_population, find_population_id
from epsilon_ledger._wire.requests import Call, Listing, RequestFlow, get, get_bytes, path, post
from epsilon_ledger._wire.signatures import Statement

Theme: TypeAlias = Literal["light", "dark"]


def create_population(
    name: str,
    *,
    privacy_unit: str,
    neighboring_relation: NeighboringRelation,
    limit: Limit,
    size: int | None = None,
    planned: PlannedEvents | None = None,
    composition: ParallelComposition | None = None,
) -> Call[Population]:
    """Create a population, the root of a budget tree; needs an admin's key.

    Args:
        name: unique in the organisation, without "/".
        privacy_unit: "patient record" for instance, 1 to 100 characters.
        neighboring_relation: which data sets are neighbours.
        limit: of all runs on the population together.
        size: number of privacy units, if known; the limit's delta must be below 1 / size.
        planned: the plan: events in order, each with a count, such as `[(event, 1000)]`. The last one may be a bare
            event: as many as the limit allows. None: the filter is tuned for the first charged event.
        composition: declares its budgets as disjoint; None: their spending adds up.

    Returns:
        The population.

    Raises:
        ApprovalRequiredError: the organisation's policy requires approval; a proposal was created.
        LedgerError: it was not created, or no response arrived.
    """
    body = {
        "name": name,
        "privacy_unit": privacy_unit,
        "neighboring_relation": neighboring_relation,
        "limit": wire_limit(limit),
        "size": size,
        "planned": wire_planned(planned),
        **wire_composition(composition),
    }
    return Call(post("v1/populations", body), Population)


def create_budget(  # noqa: PLR0913 - the members of the request, by name
    name: str,
    *,
    parent: str,
    limit: Limit,
    planned: PlannedEvents | None = None,
    composition: ParallelComposition | None = None,
    opens_at: datetime | None = None,
    closes_at: datetime | None = None,
    block: DataBlock | None = None,
) -> Call[Budget]:
    """Create a budget under a population or another budget; needs an admin's key.

    Args:
        name: unique under its parent, without "/".
        parent: id or path, "mimic" or "mimic/icu-team" for instance.
        limit: of all runs under it together.
        planned: the plan: events in order, each with a count, such as `[(event, 1000)]`. The last one may be a bare
            event: as many as the limit allows. None: the filter is tuned for the first charged event.
        composition: declares the budgets under it as disjoint; None: their spending adds up.
        opens_at: timezone-aware; the budget is closed before.
        closes_at: timezone-aware; the budget is closed from then on.
        block: its data, if its parent has composition.

    Returns:
        The budget.

    Raises:
        LedgerError: it was not created, or no response arrived.
    """
    body = {
        "name": name,
        "parent": parent,
        "limit": wire_limit(limit),
        "planned": wire_planned(planned),
        "opens_at": wire_timestamp("opens_at", opens_at),
        "closes_at": wire_timestamp("closes_at", closes_at),
        "block": wire_data_block(block),
        **wire_composition(composition),
    }
    return Call(post("v1/budgets", body), Budget)


def get_population(population: str) -> RequestFlow[Population]:
    """Get a population.

    Args:
        population: its id or name.

    Returns:
        The population.

    Raises:
        NotFoundError: it does not exist.
        LedgerError: no response arrived.
    """
    return (yield from find_population(population))


def list_populations(*, path: str | None = None, page_size: int = 100) -> Listing[Population]:
    """List populations, newest first.

    Args:
        path: only the population of this name.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/populations", {"path": path}, Population, page_size)


def get_budget(budget: str) -> RequestFlow[Budget]:
    """Get a budget.

    Args:
        budget: its id or path, such as "mimic/icu-team".

    Returns:
        The budget.

    Raises:
        NotFoundError: it does not exist.
        LedgerError: no response arrived.
    """
    return (yield from find_budget(budget))


def list_budgets(*, parent: str | None = None, path: str | None = None, page_size: int = 100) -> Listing[Budget]:
    """List budgets, newest first.

    Args:
        parent: only those directly under this account, an id or a path.
        path: only the budget at this path.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/budgets", {"parent": parent, "path": path}, Budget, page_size)


def get_account_history(account: str, *, max_points: int = 200) -> RequestFlow[AccountHistory]:
    """Get the epsilon of a population or a budget over time.

    Args:
        account: its id or path.
        max_points: maximum number of points, in [2, 500].

    Returns:
        The history, with the shares of the children; `to_pandas` makes a data frame of it.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    request = get(f"{path('accounts', account_id)}/history", {"max_points": max_points})
    return (yield request).read(AccountHistory)


def get_account_history_svg(
    account: str, *, theme: Theme = "light", width: int = 760, height: int = 340
) -> RequestFlow[bytes]:
    """Get the chart of an account's history as SVG.

    Args:
        account: its id or path.
        theme: dark on light, or light on dark.
        width: in pixels, in [200, 2000].
        height: in pixels, in [120, 1200].

    Returns:
        The image.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    query = {"theme": theme, "width": width, "height": height}
    return (yield get_bytes(f"{path('accounts', account_id)}/history.svg", query)).content


def get_account_history_png(
    account: str, *, theme: Theme = "light", width: int = 760, height: int = 340
) -> RequestFlow[bytes]:
    """Get the chart of an account's history as PNG.

    Args:
        account: as in `get_account_history_svg`.
        theme: as in `get_account_history_svg`.
        width: as in `get_account_history_svg`.
        height: as in `get_account_history_svg`.

    Returns:
        The image.

    Raises:
        LedgerError: the account does not exist, or no response arrived.
    """
    account_id = yield from find_account_id(account)
    query = {"theme": theme, "width": width, "height": height}
    return (yield get_bytes(f"{path('accounts', account_id)}/history.png", query)).content


def get_population_statement(population: str) -> RequestFlow[Statement]:
    """Get the signed statement of a population.

    Args:
        population: its id or name.

    Returns:
        The statement; `verify` checks its signature.

    Raises:
        SigningNotConfiguredError: the ledger has no signing key.
        AccountQuarantinedError: its balance is not proven.
        LedgerError: it does not exist, or no response arrived.
    """
    population_id = yield from find_population_id(population)
    return (yield get(f"{path('populations', population_id)}/statement")).read(Statement)


def get_population_statement_html(population: str) -> RequestFlow[bytes]:
    """Get the statement of a population as a page to read and print.

    Args:
        population: its id or name.

    Returns:
        HTML in UTF-8.

    Raises:
        LedgerError: as in `get_population_statement`.
    """
    population_id = yield from find_population_id(population)
    return (yield get_bytes(f"{path('populations', population_id)}/statement.html")).content
