"""The glossary lists every permission, audit action, error code and event type of the code, and nothing else."""

import re
from collections.abc import Iterable

import pytest

from app.api.problems import STATUSES
from app.ledger.alerts import AlertType
from app.ledger.audit import AuditAction
from app.ledger.permissions import Permission
from tests.docs.markdown import ROOT

GLOSSARY = (ROOT / "docs/reference/glossary.md").read_text()


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Permissions", Permission),
        ("Audit actions", AuditAction),
        ("Error codes", STATUSES),
        ("Event types", AlertType),
    ],
)
def test_glossary_lists_every_name_of_the_code_and_no_other(heading: str, names: Iterable[str]) -> None:
    section = re.split(r"(?m)^## ", GLOSSARY.partition(f"## {heading}\n")[2])[0]
    listed = re.findall(r"(?m)^\| `([^`]+)` \| \S.* \|$", section)
    assert sorted(listed) == sorted(str(name) for name in names)
