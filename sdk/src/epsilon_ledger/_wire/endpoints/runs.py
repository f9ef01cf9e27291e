"""Runs, their histories and statements."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeAlias, Unpack

from epsilon_ledger._wire.endpoints.accounts import Theme
from epsilon_ledger._wire.histories import RunHistory
from epsilon_ledger._wire.members import wire_timestamp
from epsilon_ledger._wire.metadata import MetadataChanges, metadata_filters, wire_metadata
from epsilon_ledger._wire.models import RunState
from epsilon_ledger._wire.references import find_run_id
from epsilon_ledger._wire.registry_entries import RegistryEntry
from epsilon_ledger._wire.requests import Call, Listing, RequestFlow, get, get_bytes, patch, path
from epsilon_ledger._wire.signatures import Statement

RunStatus: TypeAlias = Literal["pending", "waiting", "active", "paused", "completed", "aborted", "overdrawn"]
EndReason: TypeAlias = Literal["finished", "budget_exhausted", "aborted", "lost", "not_granted"]
RunOrder: TypeAlias = Literal["created_at", "-created_at", "updated_at", "-updated_at", "name", "-name"]


def get_run(run_id: str) -> Call[RunState]:
    """Get a run's state."""
    return Call(get(path("runs", run_id)), RunState)


def update_run(run: str, **changes: Unpack[MetadataChanges]) -> RequestFlow[RunState]:
    """Update the metadata of a run.

    Args:
        run: its id, or its path if no other run has the same.
        changes: of its metadata, as in `MetadataChanges`. What is left out stays, None removes.
            Labels are merged by key, links are replaced.

    Returns:
        The run's state.

    Raises:
        AmbiguousPathError: several runs have this path.
        LedgerError: it does not exist, or no response arrived.
        TypeError: there is no such argument.
    """
    members = wire_metadata(changes)
    run_id = yield from find_run_id(run)
    return (yield patch(path("runs", run_id), members)).read(RunState)


def list_runs(  # noqa: PLR0913 - the filters of the list, by name
    *,
    budget: str | None = None,
    population: str | None = None,
    within: str | None = None,
    path: str | None = None,
    status: RunStatus | Sequence[RunStatus] | None = None,
    end_reason: EndReason | Sequence[EndReason] | None = None,
    q: str | None = None,
    owner: str | None = None,
    labels: Mapping[str, str | None] | None = None,
    archived: bool = False,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    updated_after: datetime | None = None,
    sort: RunOrder = "-created_at",
    page_size: int = 100,
) -> Listing[RunState]:
    """List runs, by default the newest first.

    Args:
        budget: only those that charge this budget directly, an id or a path.
        population: only those that charge this population, an id or a name.
        within: only those that charge this account, an id or a path, at any depth.
        path: only those with this path, which several may have.
        status: only those with this status, or with one of several.
        end_reason: only those that ended for this reason, or for one of several.
        q: only those with this text in path, display name or owner, ignoring case, or with this id.
        owner: only those of this owner.
        labels: only those with all of these labels; a value of None means any value.
        archived: only what is archived, and what is under it.
        created_after: timezone-aware; only those created from this time on.
        created_before: timezone-aware; only those created before this time.
        updated_after: timezone-aware; only those changed from this time on.
        sort: the order; a minus sign begins with the greatest.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator over the runs' states, which requests a page when it is needed. `get_run` opens one for training.

    Raises:
        LedgerError: while iterating: the budget does not exist, or no response arrived.
    """
    query = {
        "budget": budget,
        "population": population,
        "within": within,
        "path": path,
        "status": status,
        "end_reason": end_reason,
        **metadata_filters(q, owner, labels, archived=archived),
        "created_after": wire_timestamp("created_after", created_after),
        "created_before": wire_timestamp("created_before", created_before),
        "updated_after": wire_timestamp("updated_after", updated_after),
        "sort": sort,
    }
    return Listing("v1/runs", query, RunState, page_size)


def get_run_history(run: str, *, max_points: int = 500, after: str | None = None) -> RequestFlow[RunHistory]:
    """Get the decisions on a run, thinned out; `list_decisions` has all of them.

    Args:
        run: its id, or its path if no other run has the same.
        max_points: maximum number of points, in [2, 2000].
        after: `next_cursor` of an earlier page.

    Returns:
        A page of points; `to_pandas` makes a data frame of it.

    Raises:
        AmbiguousPathError: several runs have this path.
        LedgerError: the run does not exist, or no response arrived.
    """
    run_id = yield from find_run_id(run)
    request = get(f"{path('runs', run_id)}/history", {"max_points": max_points, "after": after})
    return (yield request).read(RunHistory)


def export_run_history(run: str) -> RequestFlow[bytes]:
    """Export all decisions on a run as CSV.

    Args:
        run: as in `get_run_history`.

    Returns:
        CSV in UTF-8, a row for each decision.

    Raises:
        LedgerError: the run does not exist, or no response arrived.
    """
    run_id = yield from find_run_id(run)
    return (yield get_bytes(f"{path('runs', run_id)}/history.csv")).content


def get_run_history_svg(run: str, *, theme: Theme = "light", width: int = 760, height: int = 340) -> RequestFlow[bytes]:
    """Get the chart of a run's history as SVG.

    Args:
        run: as in `get_run_history`.
        theme: dark on light, or light on dark.
        width: in pixels, in [200, 2000].
        height: in pixels, in [120, 1200].

    Returns:
        The image.

    Raises:
        LedgerError: the run does not exist, or no response arrived.
    """
    run_id = yield from find_run_id(run)
    query = {"theme": theme, "width": width, "height": height}
    return (yield get_bytes(f"{path('runs', run_id)}/history.svg", query)).content


def get_run_statement(run: str) -> RequestFlow[Statement]:
    """Get the signed statement of a run.

    Args:
        run: as in `get_run_history`.

    Returns:
        The statement; `verify` checks its signature.

    Raises:
        SigningNotConfiguredError: the ledger has no signing key.
        AccountQuarantinedError: its balance is not proven.
        LedgerError: it does not exist, or no response arrived.
    """
    run_id = yield from find_run_id(run)
    return (yield get(f"{path('runs', run_id)}/statement")).read(Statement)


def get_run_statement_html(run: str) -> RequestFlow[bytes]:
    """Get the statement of a run as a page to read and print.

    Args:
        run: as in `get_run_history`.

    Returns:
        HTML in UTF-8.

    Raises:
        LedgerError: as in `get_run_statement`.
    """
    run_id = yield from find_run_id(run)
    return (yield get_bytes(f"{path('runs', run_id)}/statement.html")).content


def get_run_registry_entry(run: str) -> RequestFlow[RegistryEntry]:
    """Get the entry of a run for the public registry of deployments, and what it still lacks.

    Args:
        run: as in `get_run_history`.

    Raises:
        AccountQuarantinedError: its balance is not proven.
        LedgerError: it does not exist, or no response arrived.
    """
    run_id = yield from find_run_id(run)
    return (yield get(f"{path('runs', run_id)}/registry-entry")).read(RegistryEntry)
