"""The glossary lists every permission, audit action and error code of the code, and nothing else."""

import re
from collections.abc import Iterable

import pytest

from app.api.problems import STATUSES
from app.ledger.audit import AuditAction
from app.ledger.permissions import ISSUES, Permission, Role
from tests.api.matrix import MAY
from tests.docs.markdown import ROOT

GLOSSARY = (ROOT / "docs/reference/glossary.md").read_text()


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Permissions", Permission),
        ("Audit actions", AuditAction),
        ("Error codes", STATUSES),
    ],
)
def test_glossary_lists_every_name_of_the_code_and_no_other(heading: str, names: Iterable[str]) -> None:
    section = re.split(r"(?m)^## ", GLOSSARY.partition(f"## {heading}\n")[2])[0]
    listed = re.findall(r"(?m)^\| `([^`]+)` \| \S.* \|$", section)
    assert sorted(listed) == sorted(str(name) for name in names)


def test_roles_page_says_of_every_operation_who_may() -> None:
    """The table of roles, which the API's tests hold in each role, is the page's."""
    page = (ROOT / "docs/reference/roles.md").read_text()
    rows = [row.strip("|").split("|") for row in re.findall(r"(?m)^\|.*\|$", page) if row.count("|") == 10]
    names = [cell.strip() for cell in rows[0][2:]]
    assert names == list(Role)
    listed = [
        (operation, [role for role, cell in zip(names, cells, strict=True) if cell.strip() == "yes"])
        for _, operations, *cells in rows[2:]
        for operation in re.findall(r"`(\w+)`", operations)
    ]
    assert sorted(listed) == sorted(MAY.items())
    for role, lent in re.findall(r"(?m)^\| `(\w+)` \| (all roles.*|`viewer`, .*) \|$", page):
        named = set(re.findall(r"`(\w+)`", lent))
        assert {str(each) for each in ISSUES[Role(role)]} == (set(Role) - named if lent.startswith("all") else named)
    assert len(re.findall(r"(?m)^\| `\w+` \| (?:all roles|`viewer`, )", page)) == len(ISSUES)
