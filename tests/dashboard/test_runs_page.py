"""The page of runs: every filter, sorted, page by page, and downloaded."""

import csv
import io
import re
from collections.abc import Iterator

import pytest

from app.dashboard.formatting import percent
from tests.conftest import Ledger, open_ledger
from tests.dashboard.page_visitor import Page, scoped_visitor, text_of, visitor
from tests.dashboard.sample_hospital import Hospital

OWNER = "Dana Roth"
ENDS = {"a-used-up": ("complete", "budget_exhausted"), "a-lost": ("abort", "lost"), "a-finished": ("complete", None)}


@pytest.fixture(scope="module")
def runs(hospital: Hospital, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """The hospital, where a run is described, others have ended, and a sweep has 52 runs."""
    with open_ledger(hospital.copy(tmp_path_factory.mktemp("runs")).folder) as ledger:
        about = {"owner": OWNER, "display_name": "U-Net", "labels": {"team": "imaging", "model": "unet <b>"}}
        assert ledger.patch(f"/v1/runs/{hospital.ids['imaging/segmentation/unet']}", about).is_success
        for name, (end, reason) in ENDS.items():
            run = ledger.run("mimic/readmission", name=name)
            assert ledger.post(f"/v1/runs/{run}/{end}", {"reason": reason} if reason else {}).is_success
        for number in range(52):
            ledger.run("mimic/icu-team", name=f"sweep-{number % 50}", labels={"sweep": "s1"})
        yield ledger


def listed(page: Page) -> list[str]:
    """The names of the runs in the list."""
    return [text_of(next(each.iter("a"))) for each in page.get("list").iter("th") if each.get("scope") == "row"]


def download(page: Page) -> list[dict[str, str]]:
    """The rows of the file that the page offers."""
    [link] = [each.get("href", "") for each in page.root.iter("a") if text_of(each) == "Download as CSV"]
    reply = page.visitor.ledger.http.get(link, headers=page.visitor.cookie)
    assert 'filename="runs.csv"' in reply.headers["content-disposition"]
    return list(csv.DictReader(io.StringIO(reply.text)))


def test_run_is_found_by_display_name_and_labels(runs: Ledger, hospital: Hospital) -> None:
    unet = hospital.ids["imaging/segmentation/unet"]
    page = visitor(runs).open("/runs?q=u-net")
    assert listed(page) == ["U-Net"]
    used = " ".join(percent(runs.get(f"/v1/runs/{unet}").json()["used"]).split())
    assert "Matching runs" in page.words
    for text in (OWNER, "team:imaging", "model:unet <b>", "imaging/segmentation", f"{used} of segmentation"):
        assert text in page.part("list"), text
    [label] = [each.get("href", "") for each in page.get("list").iter("a") if text_of(each) == "team:imaging"]
    page = visitor(runs).open(label)
    assert (listed(page), page.get("q").get("value")) == (["U-Net"], "u-net")
    page = visitor(runs).open(f"{label}&label=model")
    for filters in ("team:imaging", "model"):
        [link] = [each for each in page.root.iter("a") if f"Remove the filter {filters}" in str(each.attrib)]
        removed = visitor(runs).open(link.get("href", ""))
        assert f"Remove the filter {filters}" not in removed.reply.text
        assert listed(removed) == ["U-Net"]
    assert f"/runs/{unet}" in page.links()


def test_column_sorts_the_list_and_turns_the_order(runs: Ledger) -> None:
    def head(page: Page) -> tuple[str, str, str]:
        [sorted_by] = [each for each in page.get("list").iter("th") if "aria-sort" in each.attrib]
        [link] = [each for each in page.get("list").iter("a") if text_of(each).startswith("Run ") or each.text == "Run"]
        return text_of(sorted_by), sorted_by.get("aria-sort", ""), link.get("href", "")

    page = visitor(runs).open("/runs?status=active&q=e")
    said, _, link = head(page)
    assert said == "Registered ▼"
    page = visitor(runs).open(link)
    names = listed(page)
    assert names == sorted(names, key=str.lower)
    assert len(names) > 1
    assert head(page)[:2] == ("Run ▲", "ascending")
    page = visitor(runs).open(head(page)[2])
    assert head(page)[:2] == ("Run ▼", "descending")
    assert all("status=active" in link for link in page.links("/runs?") if "sort=" in link)


def test_download_has_the_rows_of_the_list(runs: Ledger, hospital: Hospital) -> None:
    query = f"owner={OWNER}&label=team:imaging&created_after=2020-01-01T00:00&sort=name"
    [row] = download(visitor(runs).open(f"/runs?{query}"))
    assert (row["id"], row["owner"]) == (hospital.ids["imaging/segmentation/unet"], OWNER)


def test_runs_are_found_by_their_end(runs: Ledger) -> None:
    rows = visitor(runs, "auditor").open("/runs?q=/a-").rows("list")
    for said in ("a-lost .*aborted lost", "a-finished .*completed finished", "a-used-up .*completed budget used up"):
        assert any(re.search(said, row) for row in rows), said
    page = visitor(runs, "auditor").open("/runs?q=/a-&end_reason=budget_exhausted")
    assert listed(page) == ["a-used-up"]
    [row] = download(page)
    assert (row["name"], row["end_reason"]) == ("a-used-up", "budget_exhausted")
    said = "completed the run mimic/readmission/a-used-up: budget used up"
    assert said in visitor(runs, "auditor").open("/audit?action=run.completed").words


def test_wrong_filter_is_named_and_lists_nothing(runs: Ledger) -> None:
    person = visitor(runs)
    for query, field, said in (
        ("status=gone", "status", "active"),
        ("end_reason=gone", "end_reason", "budget_exhausted"),
        ("within=nowhere", "within", "nowhere"),
        ("created_after=soon", "created_after", "write a moment"),
        ("label=:x", "label", "has no key"),
        ("sort=price", "", "created_at"),
        ("after=???", "", "cursor"),
    ):
        page = person.open(f"/runs?{query}")
        assert page.status == 200
        assert "Invalid search" in page.words
        assert said in (page.part(f"{field}-fault") if field else page.words)
        assert page.has("list")
        assert page.links("/runs/run_") == []


def test_many_runs_are_listed_page_by_page_each_once(runs: Ledger) -> None:
    person, address, seen = visitor(runs), "/runs?label=sweep:s1&sort=name", list[str]()
    while address:
        page = person.open(address)
        seen += page.links("/runs/run_")
        address = next((link for link in page.links("/runs?") if "after=" in link), "")
    assert len(seen) == len(set(seen)) == 52
    assert "sweep-1 #2" in person.open("/runs?q=sweep-1&label=sweep").words


def test_key_of_account_sees_the_runs_in_it(own_sample: Ledger) -> None:
    bound = scoped_visitor(own_sample, "viewer", "mimic/icu-team")
    page = bound.open("/runs")
    assert "lstm-mortality" in page.words
    assert "transformer" not in page.reply.text
    assert "Invalid search" in bound.open("/runs?within=stroke-registry").words
