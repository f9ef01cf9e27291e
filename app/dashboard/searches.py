"""Searches of pages: the form, its errors, and the links to further items and to the CSV, derived from a list."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Generic, TypeVar, get_args
from urllib.parse import urlencode

from pydantic import Field, create_model

from app.api.lists import ListEndpoint, Read, bounded_type
from app.api.pagination import decode_cursor, encode_cursor
from app.dashboard.form_fields import Fields, Moment, read_fields
from app.dashboard.page_context import PageContext
from app.ledger.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from app.ledger.pages import Page, PageRequest
from app.ledger.query_parameters import Parameter, parameters_of

F = TypeVar("F")
T = TypeVar("T")

PAGE: Final = 50
"""Items of a page."""

Pairs = list[tuple[str, str]]
"""Parameters of an address."""


@dataclass(frozen=True, slots=True)
class Search(Generic[T]):
    """What a search found, for the macros `search_form`, `found_items` and `sorted_head`.

    Args:
        path: of the page.
        fields: of the form.
        found: a page of the list.
        faults: error messages by field.
        query: what was searched for, and the order unless it is the default.
        order: of the list; empty: it has one only.
        csv: address of all of it as CSV; None: the list has none.
        newest: address of the first page; None: this is it.
    """

    path: str
    fields: tuple[Parameter, ...]
    found: Page[T]
    faults: Mapping[str, str]
    query: Pairs
    order: str
    csv: str | None
    newest: str | None

    @property
    def older(self) -> str | None:
        """The address of the next page; None: there is none."""
        return self.including("after", encode_cursor(self.found.next) or "") if self.found.next else None

    @property
    def filters(self) -> Pairs:
        """What was searched for."""
        return [(name, text) for name, text in self.query if name in {each.name for each in self.fields}]

    @property
    def tags(self) -> Pairs:
        """What was searched for in fields with several texts, each of which can be removed."""
        several = {each.name for each in self.fields if each.repeated and not _options(each)}
        return [pair for pair in self.filters if pair[0] in several]

    def options(self, field: Parameter, words: Mapping[str, str]) -> list[tuple[str, str]]:
        """List the values of a field, and what each is called; none: it takes any text."""
        return [(value, words.get(value, "yes" if value == "true" else value)) for value in _options(field)]

    @property
    def hidden(self) -> Pairs:
        """What no field of the form shows."""
        return [*self.tags, *(pair for pair in self.query if pair not in self.filters)]

    def including(self, name: str, text: str) -> str:
        """Build the address of the page with one more parameter."""
        return address(self.path, [*self.query, (name, text)])

    def without(self, name: str, text: str) -> str:
        """Build the address of the page without a parameter."""
        return address(self.path, [pair for pair in self.query if pair != (name, text)])

    def sorting(self, first: str) -> tuple[str, str | None]:
        """Get the address that sorts by a column, and its present direction for `aria-sort`.

        `first` is the order that it begins with; a minus sign is descending.
        """
        column, others = first.removeprefix("-"), [pair for pair in self.query if pair[0] != "sort"]
        if self.order.removeprefix("-") != column:
            return address(self.path, [*others, ("sort", first)]), None
        turned = column if self.order.startswith("-") else f"-{column}"
        return address(self.path, [*others, ("sort", turned)]), "ascending" if turned != column else "descending"


class SearchForm(Generic[F]):
    """A form that searches a list; it has the filters with a label.

    Args:
        path: of the page.
        listing: the list.
    """

    def __init__(self, path: str, listing: ListEndpoint[F, Any]) -> None:
        self._path = path
        self._list = listing
        self._fields = tuple(each for each in parameters_of(listing.filters) if each.label is not None)

    @cached_property
    def _model(self) -> type[Fields]:
        members: dict[str, Any] = {}
        for each in self._fields:
            kind, bounds = bounded_type(each, Moment)
            members[each.name] = Annotated[kind, Field(**bounds)], each.default
        return create_model("SearchFields", __base__=Fields, **members)

    def read(self, page: PageContext, read: Read[F, T]) -> Search[T]:
        """Read the page of a list that a query asks for; errors of the query become those of fields."""
        fields, faults = read_fields(self._model, {each.name: _given(each, page) for each in self._fields})
        found: Page[T] = Page((), None)
        if fields is not None:
            try:
                wanted = self._list.filters(**{each.field: getattr(fields, each.name) for each in self._fields})
                found = read(page.context, wanted, PageRequest(PAGE, decode_cursor(page.query.get("after"))))
            except InvalidInputError as error:
                faults = {str(error.members.get("field", "after")): error.detail}
            except (NotFoundError, PermissionDeniedError) as error:
                named = [each.name for each in self._fields if each.is_reference and page.query.get(each.name)]
                if not named:
                    raise
                faults = {named[-1]: error.detail}
        query = _pairs(fields)
        return Search(
            self._path,
            tuple(each for each in self._fields if each.label),
            found,
            faults,
            query,
            dict(query).get("sort", next((str(each.default) for each in self._fields if each.name == "sort"), "")),
            address(f"/v1/{self._list.name}.csv", query) if self._list.csv else None,
            address(self._path, query) if page.query.get("after") else None,
        )


def _given(field: Parameter, page: PageContext) -> str | list[str]:
    return page.repeated(field.name) if field.repeated else page.query.get(field.name, "")


def address(path: str, query: Iterable[tuple[str, str]]) -> str:
    """Build the address of a path with parameters, each once."""
    kept = list(dict.fromkeys(query))
    return f"{path}?{urlencode(kept)}" if kept else path


def _options(field: Parameter) -> list[str]:
    """List the values of a field; none: it takes any text."""
    if field.kind is bool:
        return ["true"]
    kinds = [
        kind for kind in (field.kind, *get_args(field.kind)) if isinstance(kind, type) and issubclass(kind, StrEnum)
    ]
    return [str(value) for kind in kinds for value in kind]


def _pairs(fields: Fields | None) -> Pairs:
    """List the fields that have not their defaults as parameters, which the API takes too."""
    given = {} if fields is None else fields.model_dump(mode="json", exclude_defaults=True)
    several: dict[str, list[object]] = {
        name: value if isinstance(value, list) else [value] for name, value in given.items()
    }
    return [(name, "true" if each is True else str(each)) for name, values in several.items() for each in values]
