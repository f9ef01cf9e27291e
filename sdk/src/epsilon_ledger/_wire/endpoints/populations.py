"""Populations and their statements."""

from collections.abc import Mapping
from typing import Unpack

from epsilon_ledger._wire.events import PlannedEvents
from epsilon_ledger._wire.members import wire_composition, wire_limit, wire_planned
from epsilon_ledger._wire.metadata import Metadata, MetadataChanges, metadata_filters, wire_metadata
from epsilon_ledger._wire.models import Limit, NeighboringRelation, ParallelComposition, Population
from epsilon_ledger._wire.references import find_population, find_population_id
from epsilon_ledger._wire.registry_entries import RegistryEntry
from epsilon_ledger._wire.requests import Call, Listing, RequestFlow, get, get_bytes, patch, path, post
from epsilon_ledger._wire.signatures import Statement


def create_population(
    name: str,
    *,
    privacy_unit: str,
    neighboring_relation: NeighboringRelation,
    limit: Limit,
    size: int | None = None,
    planned: PlannedEvents | None = None,
    composition: ParallelComposition | None = None,
    **metadata: Unpack[Metadata],
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
        metadata: for people, as in `Metadata`.

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
        **wire_metadata(metadata),
    }
    return Call(post("v1/populations", body), Population)


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


def update_population(population: str, **changes: Unpack[MetadataChanges]) -> RequestFlow[Population]:
    """Update the metadata of a population.

    Args:
        population: its id or name.
        changes: of its metadata, as in `MetadataChanges`. What is left out stays, None removes.
            Labels are merged by key, links are replaced.

    Returns:
        The population.

    Raises:
        LedgerError: it does not exist, or no response arrived.
        TypeError: there is no such argument.
    """
    members = wire_metadata(changes)
    population_id = yield from find_population_id(population)
    return (yield patch(path("populations", population_id), members)).read(Population)


def list_populations(
    *,
    path: str | None = None,
    name: str | None = None,
    q: str | None = None,
    owner: str | None = None,
    labels: Mapping[str, str | None] | None = None,
    archived: bool = False,
    page_size: int = 100,
) -> Listing[Population]:
    """List populations, newest first.

    Args:
        path: only the population at this path, which is its name.
        name: only the population of this name.
        q: only those with this text in path, display name or owner, ignoring case, or with this id.
        owner: only those of this owner.
        labels: only those with all of these labels; a value of None means any value.
        archived: only what is archived, and what is under it.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing(
        "v1/populations",
        {"path": path, "name": name, **metadata_filters(q, owner, labels, archived=archived)},
        Population,
        page_size,
    )


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


def get_population_registry_entry(population: str) -> RequestFlow[RegistryEntry]:
    """Get the entry of a population for the public registry of deployments, and what it still lacks.

    Args:
        population: its id or name.

    Raises:
        AccountQuarantinedError: its balance is not proven.
        LedgerError: it does not exist, or no response arrived.
    """
    population_id = yield from find_population_id(population)
    return (yield get(f"{path('populations', population_id)}/registry-entry")).read(RegistryEntry)
