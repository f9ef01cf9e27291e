"""Fields of runs and accounts are declared once, each type has its purpose, and what is written out agrees."""

import ast
import re
from dataclasses import fields
from inspect import signature

import pytest
from sqlalchemy import Table

from app.api.routers.exports import RUN_COLUMNS
from app.api.schemas import metadata as metadata_schemas
from app.api.schemas.runs import CreateRun, Run
from app.ledger.accounts.metadata import METADATA_FIELDS, METADATA_TEXTS
from app.ledger.runs.run import DECLARED
from app.persistence.tables import account_metadata, runs
from epsilon_ledger import Metadata, MetadataChanges
from epsilon_ledger._run.run_factory import create_run
from epsilon_ledger._wire.metadata import AccountMetadata
from epsilon_ledger._wire.models import RunState
from tests.docs.markdown import ROOT, section

GUIDE = (ROOT / "docs/contributing/add-a-kind.md").read_text()
STYLE = (ROOT / "docs/contributing/style.md").read_text()

NOT_SHAPES = re.compile(r"(Error|Filter|Kind|Status|Action|Order|Cache)$")
"""Ends of the names of classes that are enumerations, errors, filters and caches."""


@pytest.mark.parametrize(
    ("table", "columns", "everywhere", "elsewhere"),
    [
        (runs, DECLARED, DECLARED, [CreateRun.model_fields, Run.model_fields, signature(create_run).parameters]),
        (
            account_metadata,
            METADATA_TEXTS,
            METADATA_FIELDS,
            [
                *(getattr(metadata_schemas, each).model_fields for each in ("MetadataInput", "UpdateMetadata")),
                *(metadata_schemas.MetadataMembers.model_fields, Run.model_fields),
                *(Metadata.__annotations__, MetadataChanges.__annotations__),
            ],
        ),
    ],
)
def test_declared_fields(table: Table, columns: list[str], everywhere: list[str], elsewhere: list[list[str]]) -> None:
    assert set(columns) <= set(table.columns.keys())
    for names in (*elsewhere, RUN_COLUMNS, [each.name for each in fields(RunState)]):
        assert set(everywhere) <= set(names)


def test_a_client_has_all_metadata() -> None:
    assert {each.name for each in fields(AccountMetadata)} == {*METADATA_FIELDS, "archived_at"}


@pytest.mark.parametrize(("of", "most"), [("runs", 10), ("accounts", 10)])
def test_number_of_files(of: str, most: int) -> None:
    """The list of files is the number in the table, and each is there."""
    steps = re.findall(r"(?m)^\d+\. `([^`]+)`", section(GUIDE, f"Add a field to {of}"))
    assert all((ROOT / path).exists() for path in steps)
    found = re.search(rf"\[field of {of}\]\([^)]*\) \| `([^`]+)` \| (\d+),", GUIDE)
    assert found
    assert (found[1], int(found[2])) == (steps[0], len(steps))
    assert len(steps) <= most


def test_types() -> None:
    """Every class of the service that stands for an account or a run is on the page, and there are few."""
    text = section(STYLE, "Types of an account and of a run")
    tables = {
        kind: re.findall(r"(?m)^\| `(\w+)` \|", rows)
        for kind, rows in re.findall(r"(?ms)^\| (Account|Run) \|.*?\n(.*?)\n\n", text)
    }
    assert len(tables["Account"]) <= 7
    assert len(tables["Run"]) <= 4
    written = {
        node.name
        for package in ("ledger", "persistence", "service")
        for path in (ROOT / "app" / package).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
        and re.search("(Account|Run)(?![a-z])", node.name)
        and (node.name == "AccountStatus" or not NOT_SHAPES.search(node.name))
    }
    assert written == set(re.findall(r"`(\w*(?:Account|Run)\w*)`", text))
