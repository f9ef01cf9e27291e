"""Lists of the API: each is declared once, and gets a route for its pages, and one for all of it as CSV."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import create_model

from app.api import csv_responses
from app.api.csv_responses import cells_of, csv_response, csv_route
from app.api.pagination import PageRequestDep, encode_cursor
from app.api.problems import LIST_ERRORS, READ_ERRORS
from app.api.route import ContextDep, LedgerRouter, etag_response
from app.api.schemas.common import Output, Page, Timestamp
from app.ledger.pages import Page as DomainPage
from app.ledger.pages import PageRequest, read_pages
from app.ledger.query_parameters import MAX_TEXT, Parameter, parameters_of
from app.service.auth.request_context import RequestContext

F = TypeVar("F")
T = TypeVar("T")

Read = Callable[[RequestContext, F, PageRequest], DomainPage[T]]
"""A use case that reads a page of a list."""


@dataclass(frozen=True, slots=True)
class Csv(Generic[F, T]):
    """A list as CSV: the columns, the use case that reads its rows, and the cells of a row."""

    columns: Sequence[str]
    read: Read[F, T]
    cells: Callable[[T], Sequence[object]]


@dataclass(frozen=True, slots=True)
class ListEndpoint(Generic[F, T]):
    """A list: `GET /v1/<name>`, and `GET /v1/<name>.csv` if it has one.

    Args:
        name: its path, and the name of its file.
        filters: a dataclass whose fields with a `parameter` are its query parameters.
        read: its use case.
        schema: of an item.
        description: in the OpenAPI document, if there is more to say than that it is newest first.
        items: what it lists, in words; empty: its name.
        tag: of its operations; empty: its name. A router's own tag comes first.
        csv: True: a column for each member of an item; False: it has no CSV.
    """

    name: str
    filters: type[F]
    read: Read[F, T]
    schema: type[Output]
    description: str = ""
    items: str = ""
    tag: str = ""
    csv: Csv[F, Any] | bool = False

    def respond(self, request: Request, context: RequestContext, wanted: F, page: PageRequest) -> Response:
        """Build the response of a page, with an entity tag, or 304."""
        found = self.read(context, wanted, page)
        items = [self.schema.of(each) for each in found.items]
        return etag_response(request, page_schema(self.schema)(items=items, next=encode_cursor(found.next)))

    def export(self, context: RequestContext, wanted: F) -> StreamingResponse:
        """Build the response of all pages as CSV."""
        table = self.csv
        if not isinstance(table, Csv):
            table = Csv(tuple(self.schema.model_fields), self.read, lambda item: cells_of(self.schema.of(item)))
        pages = read_pages(lambda page: table.read(context, wanted, page), csv_responses.ROWS_AT_ONCE)
        return csv_response(self.name, table.columns, (map(table.cells, page) for page in pages))


LISTS: Final[dict[str, ListEndpoint[Any, Any]]] = {}
"""All lists by name."""


@dataclass(frozen=True, slots=True)
class NoFilter:
    """The filter of a list that has none."""


def unfiltered(read: Callable[[RequestContext, PageRequest], DomainPage[T]]) -> Read[NoFilter, T]:
    """Make the use case of a list without filters."""
    return lambda context, _, page: read(context, page)


@cache
def page_schema(schema: type[Output]) -> type[Page[Any]]:
    """Get the schema of a page of items, named after them."""
    base = Page[schema]  # type: ignore[valid-type] # known at run time only
    return create_model(f"{schema.__name__}Page", __base__=base, __doc__=Page.__doc__)


def add_list(routes: LedgerRouter, listing: ListEndpoint[F, T]) -> ListEndpoint[F, T]:
    """Add the routes of a list, and return it."""
    LISTS[listing.name] = listing
    reads, items, name = (
        query_reader(listing.filters),
        listing.items or listing.name.replace("-", " "),
        listing.name.replace("-", "_"),
    )
    tag = None if routes.tags else listing.tag or listing.name
    errors = READ_ERRORS if any(each.is_reference for each in parameters_of(listing.filters)) else LIST_ERRORS

    def respond(
        request: Request, context: ContextDep, wanted: Annotated[F, Depends(reads)], page: PageRequestDep
    ) -> Response:
        return listing.respond(request, context, wanted, page)

    def export(context: ContextDep, wanted: Annotated[F, Depends(reads)]) -> StreamingResponse:
        return listing.export(context, wanted)

    respond.__name__, export.__name__ = f"list_{name}", f"export_{name}"
    respond.__doc__ = listing.description or f"List the {items} in the caller's scope, newest first."
    export.__doc__ = f"Export what `GET /v1/{listing.name}` lists with these filters, in this order. Objects are JSON."
    routes.read(f"/{listing.name}", f"List {items}", page_schema(listing.schema), *errors, tag=tag)(respond)
    if listing.csv:
        csv_route(routes, f"/{listing.name}.csv", f"Export {items} as CSV", *errors, tag=tag)(export)
    return listing


def query_reader(filters: type[F]) -> Callable[..., Any]:
    """Make the dependency that reads a filter from the query."""
    parameters = parameters_of(filters)

    # A coroutine although it awaits nothing: FastAPI runs plain functions in threads.
    async def read(**given: Any) -> F:  # noqa: ANN401 - each parameter has its type
        values = {each.field: given[each.name] for each in parameters}
        repeated = {each.field: tuple(dict.fromkeys(given[each.name] or ())) for each in parameters if each.repeated}
        return filters(**values | repeated)

    read.__signature__ = inspect.Signature([_parameter(each) for each in parameters])  # type: ignore[attr-defined]
    return read


def _parameter(each: Parameter) -> inspect.Parameter:
    kind, bounds = bounded_type(each, Timestamp | None)
    annotation: Any = Annotated[kind, Query(description=each.description, **bounds)]
    default = None if each.repeated else each.default
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def bounded_type(each: Parameter, moment: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 - types
    """Get the type of a parameter's values and their bounds; `moment` is that of times."""
    if each.repeated:
        return list[each.kind] | None, {"max_length": each.most or len(each.kind)}  # type: ignore[name-defined]
    if each.kind == str | None:
        return each.kind, {"min_length": 1, "max_length": each.most or MAX_TEXT}
    return moment if each.kind == datetime | None else each.kind, {}
