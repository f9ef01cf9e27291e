"""Each list is declared once, and what is written out elsewhere agrees (docs/contributing/add-a-list.md)."""

import inspect
import json
import re
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from app.api.lists import LISTS
from app.ledger.query_parameters import parameters_of
from epsilon_ledger import AsyncLedgerClient, LedgerClient
from tests.api.matrix import TABLE
from tests.docs.markdown import ROOT

DOCUMENT = json.loads((ROOT / "openapi/openapi.json").read_text())
GETS = {path.removeprefix("/v1/"): methods["get"] for path, methods in DOCUMENT["paths"].items() if "get" in methods}
RENAMED = {"label": "labels"}
"""Parameters of which the client takes all values at once."""


def parameters(operation: dict[str, Any]) -> set[str]:
    """The names of the query parameters of an operation."""
    shared = DOCUMENT["components"]["parameters"]
    found = [shared[each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in operation["parameters"]]
    return {each["name"] for each in found if each["in"] == "query"}


def test_every_page_of_the_document_is_of_a_declared_list() -> None:
    pages = {
        path
        for path, operation in GETS.items()
        if "limit" in parameters(operation | {"parameters": operation.get("parameters", [])})
    }
    assert pages == LISTS.keys()


@pytest.mark.parametrize("name", LISTS)
def test_list(name: str) -> None:
    it, snake = LISTS[name], name.replace("-", "_")
    filters = {each.name for each in parameters_of(it.filters)}
    forms = {name: filters | {"limit", "after"}} | ({f"{name}.csv": filters} if it.csv else {})
    assert {path: parameters(GETS[path]) for path in GETS if path.partition(".")[0] == name} == forms
    assert {GETS[path]["operationId"] for path in forms} <= TABLE.keys()
    for client in (LedgerClient, AsyncLedgerClient):
        for prefix in ("list", "export") if it.csv else ("list",):
            taken = inspect.signature(getattr(client, f"{prefix}_{snake}")).parameters
            assert taken.keys() - {"self", "page_size"} == {RENAMED.get(each, each) for each in filters}
        assert hasattr(client, f"export_{snake}") is bool(it.csv)


@pytest.mark.parametrize("name", LISTS)
def test_client_knows_the_values_of_each_parameter(name: str) -> None:
    listing = inspect.unwrap(getattr(LedgerClient, f"list_{name.replace('-', '_')}"))
    hints = get_type_hints(listing)
    for each in parameters_of(LISTS[name].filters):
        kinds = [
            kind for kind in (each.kind, *get_args(each.kind)) if isinstance(kind, type) and issubclass(kind, StrEnum)
        ]
        written = {
            value for literal in _literals(hints[RENAMED.get(each.name, each.name)]) for value in get_args(literal)
        }
        assert written in ({value for kind in kinds for value in kind}, set()), each.name


def test_references_name_the_filters() -> None:
    runs = parameters_of(LISTS["runs"].filters)
    page = (ROOT / "docs/reference/dashboard.md").read_text().partition("| Filter | Finds |")[2].partition("\n\n")[0]
    assert re.findall(r"(?m)^\| ([^|-]+) \|", page) == [each.label for each in runs if each.label]
    api = (ROOT / "docs/reference/api.md").read_text().partition("### Filters")[2].partition("### CSV")[0]
    accounts = (*runs, *parameters_of(LISTS["budgets"].filters), *parameters_of(LISTS["populations"].filters))
    assert not [each.name for each in accounts if f"`{each.name}`" not in api]
    csv = (ROOT / "docs/reference/api.md").read_text().partition("### CSV")[2]
    assert not [it.name for it in LISTS.values() if it.csv and f"`/v1/{it.name}.csv`" not in csv]


def _literals(hint: Any) -> list[Any]:  # noqa: ANN401 - a type
    return [hint] if get_origin(hint) is Literal else [found for part in get_args(hint) for found in _literals(part)]
