"""Query parameters that filter and sort lists, shared by their JSON and CSV forms."""

from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends, Query

from app.api.pagination import NamedAccount
from app.api.schemas.common import Timestamp
from app.ledger.accounts.metadata import MAX_LABELS, MAX_OWNER
from app.ledger.errors import InvalidInputError
from app.ledger.runs.list_filters import Label, MetadataFilter, RunFilter, RunOrder
from app.ledger.runs.run import EndReason, RunStatus

_SEARCH: Final = "Only accounts with this text in path, display name or owner, ignoring case, or with this id."
_LABEL: Final = "Only accounts with this label: `key:value`, or `key` with any value. Repeated: with all of them."
_PATH: Final = "Only the runs at this path, the newest first: there may be several."
_POPULATION: Final = "Only runs that charge this population (id or path)."
_BUDGET: Final = "Only runs that charge this budget (id or path) directly."
_WITHIN: Final = "Only runs that charge this account (id or path), at any depth."
_STATUS: Final = "Only runs with this status. Repeated: with one of them."
_END_REASON: Final = "Only runs that ended for this reason. Repeated: for one of them."

When = Annotated[Timestamp | None, Query()]
Text = Annotated[str | None, Query(min_length=1, max_length=2000)]


async def _metadata(
    q: Annotated[Text, Query(description=_SEARCH)] = None,
    owner: Annotated[str | None, Query(min_length=1, max_length=MAX_OWNER, description="Only of this owner.")] = None,
    label: Annotated[list[str] | None, Query(max_length=MAX_LABELS, description=_LABEL)] = None,
    *,
    archived: Annotated[bool, Query(description="True: only what is archived, and what is under it.")] = False,
) -> MetadataFilter:
    return MetadataFilter(q, owner, tuple(map(read_label, label or ())), archived)


MetadataFilterDep = Annotated[MetadataFilter, Depends(_metadata)]


def read_label(text: str) -> Label:
    """Read a label of a filter: `key:value`, or `key` with any value.

    Raises:
        InvalidInputError: it has no key.
    """
    key, colon, value = text.partition(":")
    if not key:
        raise InvalidInputError(f"`label`: {text!a} has no key; send key:value or key, as team:icu.")
    return key, value if colon else None


async def _times(
    created_after: Annotated[When, Query(description="Created from this time on.")] = None,
    created_before: Annotated[When, Query(description="Created before this time.")] = None,
    updated_after: Annotated[When, Query(description="Changed from this time on.")] = None,
) -> RunFilter:
    return RunFilter(created_after=created_after, created_before=created_before, updated_after=updated_after)


async def _accounts(
    path: Annotated[Text, Query(description=_PATH)] = None,
    population: Annotated[NamedAccount, Query(description=_POPULATION)] = None,
    budget: Annotated[NamedAccount, Query(description=_BUDGET)] = None,
    within: Annotated[NamedAccount, Query(description=_WITHIN)] = None,
) -> RunFilter:
    above = tuple(each for each in (population, within) if each is not None)
    return RunFilter(path=path, budget=budget, within=above)


async def _runs(
    metadata: MetadataFilterDep,
    times: Annotated[RunFilter, Depends(_times)],
    places: Annotated[RunFilter, Depends(_accounts)],
    status: Annotated[list[RunStatus] | None, Query(max_length=len(RunStatus), description=_STATUS)] = None,
    end_reason: Annotated[list[EndReason] | None, Query(max_length=len(EndReason), description=_END_REASON)] = None,
) -> RunFilter:
    return replace(
        places,
        statuses=tuple(dict.fromkeys(status or ())),
        end_reasons=tuple(dict.fromkeys(end_reason or ())),
        created_after=times.created_after,
        created_before=times.created_before,
        updated_after=times.updated_after,
        metadata=metadata,
    )


RunFilterDep = Annotated[RunFilter, Depends(_runs)]
RunOrderParameter = Annotated[RunOrder, Query(description="The order; a minus sign begins with the greatest.")]
