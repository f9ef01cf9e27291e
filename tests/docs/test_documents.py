"""The other documents: complete, linked, and true where a machine can tell."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from app.ledger.audit import AuditEntry
from app.ledger.runs.decisions import DecisionEntry
from tests.docs.markdown import ROOT, fences

DOCUMENTS = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("sdk/*.md")))
RECORDS = sorted(ROOT.glob("docs/adr/0*.md"))
# What a document may point to outside of the repository.
ELSEWHERE = (
    "https://keepachangelog.com/",
    "https://semver.org/",
    "https://www.contributor-covenant.org/",
    "https://www.rfc-editor.org/",
)


def _sentences(text: str) -> list[str]:
    """The sentences of paragraphs and lists, those of headings, tables and code left out."""
    prose = re.sub(r"(?ms)^```.*?^```$|^(?:\||#|    )[^\n]*$", " ", text)
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose).replace("`", "")
    return [found for found in re.split(r"(?<=[.!?])\s+", prose) if len(found.split()) > 2]


def _anchors(text: str) -> set[str]:
    """The anchors of the headings."""
    prose = re.sub(r"(?ms)^```.*?^```$", "", text)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"(?m)^#+ (.*)$", prose)}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_links_lead_to_files_and_no_page_names_a_machine() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        # Where the links lead, those of code left out.
        prose = re.sub(r"(?ms)^```.*?^```$", "", text)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            if not link.startswith(ELSEWHERE):
                place, _, anchor = link.partition("#")
                page = document.parent / place if place else document
                assert page.exists(), (document, link)
                assert not anchor or anchor in _anchors(page.read_text()), (document, link)
        assert str(ROOT) not in text, document
        assert f"{Path.home()}/" not in text, document


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/contributing/setup.md"])
def test_named_targets_of_make_exist(document: str) -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"(?m)(?:`|^    )make ([a-z]+)", (ROOT / document).read_text()))
    assert named
    assert named <= set(re.findall(r"(?m)^  make ([a-z]+) ", listed))


def test_sentences_are_short() -> None:
    for document in (page for page in DOCUMENTS if page.name != "README.md"):
        lengths = [len(sentence.split()) for sentence in _sentences(document.read_text())]
        assert sum(lengths) <= 16 * len(lengths), document
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("document", sorted((ROOT / "docs/contributing").glob("*.md")), ids=_name)
def test_named_places_exist(document: Path) -> None:
    text = document.read_text()
    named = re.findall(r"`((?:\.ci|app|benchmarks|docs|examples|migrations|openapi|sdk|tests)/[^`\s]*)`", text)
    assert named
    assert not [place for place in named if not (ROOT / place).exists()]


def test_map_of_the_architecture_has_every_folder() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    folders = [path for room in (ROOT, ROOT / "app") for path in room.iterdir() if path.is_dir()]
    names = {f"{_name(path)}/" for path in folders if not path.name.startswith((".", "_"))}
    names -= {"app/", "dist/", "docs/", "site/"}
    assert len(names) > 10
    assert not [name for name in names if f"`{name}`" not in text]


def test_decision_records_have_one_form_and_stand_in_the_index() -> None:
    status = r"Status: (accepted|superseded by \d{4}) \(\d{4}-\d\d-\d\d\)"
    for record in RECORDS:
        text = record.read_text()
        assert re.match(rf"# {record.name[:4]} \S.*\n\n{status}\n", text), record
        assert re.findall(r"(?m)^## (.*)$", text) == ["Context", "Decision", "Consequences"], record
    listed = re.findall(r"(?m)^- \[(.*)\]\((.*)\)$", (ROOT / "docs/adr/README.md").read_text())
    titles = [(record.read_text().splitlines()[0].removeprefix("# "), record.name) for record in RECORDS]
    assert listed == titles


def test_site_has_every_page() -> None:
    listed = re.findall(r'(?m)"(\S+\.md)"', (ROOT / "zensical.toml").read_text())
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md"))


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/frameworks/*.md")), ids=lambda page: page.stem)
def test_job_of_any_framework_gets_three_lines_more_at_most(page: Path) -> None:
    changes = [fence.text for fence in fences(page.read_text()) if fence.language == "diff"]
    assert changes
    for change in changes:
        assert sum(line.startswith("+") for line in change.splitlines()) <= 3, change


def test_page_of_contract_names_tests_of_every_adapter() -> None:
    written = set(map(str, (ROOT / "tests").glob("**/test_*contract.py")))
    named = re.findall(r"`(tests/[\w/]*test_\w*contract\.py)`", (ROOT / "docs/contributing/adapters.md").read_text())
    assert {str(ROOT / name) for name in named} == written


def test_page_of_exports_lists_every_field_of_both_chains() -> None:
    page = (ROOT / "docs/reference/export-format.md").read_text()
    _, decisions, events = re.split(
        "### (?:Decisions of a run|Audit events of an organisation)", page.split("## Exports")[0]
    )
    for text, entry in ((decisions, DecisionEntry), (events, AuditEntry)):
        hashed = {*entry.__annotations__} - {"entry_hash"}  # the hash itself is beside the entry
        assert not {name for name in hashed if f"`{name}`" not in text}


def test_changelog_has_the_version_of_both_distributions() -> None:
    versions = re.findall(r"(?m)^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text())
    for project in ("pyproject.toml", "sdk/pyproject.toml"):
        assert tomllib.loads((ROOT / project).read_text())["project"]["version"] == versions[0]
