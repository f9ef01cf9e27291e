"""The overview: accounts by urgency, found by name, and whole though one of them is damaged."""

import re

from app.dashboard.formatting import epsilon, percent
from tests.conftest import SAMPLED, Ledger
from tests.dashboard.page_visitor import Page, scoped_visitor, text_of, visitor
from tests.dashboard.sample_hospital import Hospital
from tests.service.tampering import TEAM, set_account, tampering


def lines(page: Page, path: str = "") -> list[str]:
    """The lines of accounts, or of those whose whole path is named."""
    found = [each for each in page.root.iter() if "account-status" in each.get("class", "").split()]
    return [text_of(each) for each in found if not path or any(one.get("title") == path for one in each.iter())]


def populations(page: Page) -> list[str]:
    """The names of populations, in their order."""
    tops = [each for each in page.root.iter() if "population" in each.get("class", "").split()]
    return [text_of(next(each.iter("a"))) for each in tops]


def test_trees_are_ordered_by_urgency_with_numbers_of_api(sample: Ledger) -> None:
    page = visitor(sample).open("/")
    assert populations(page) == ["stroke-registry", "mimic", "imaging", "staff-survey"]
    for found in sample.get("/v1/populations").json()["items"]:
        [line] = lines(page, found["path"])
        used = re.escape(" ".join(percent(found["used"]).split()))
        limit = f"limit {found['limit']['epsilon']:g} at δ 1e-6"
        assert re.match(rf".*{used} used, .* left .*ε {re.escape(epsilon(found['epsilon']))}, {limit}", line), line
    [team] = lines(page, "stroke-registry/outcome-models")
    assert "nearly exhausted" in team
    assert re.search(r"% a day: \d+ (minutes|hours) left", team), team
    [readmission], [sweep] = lines(page, "mimic/readmission"), lines(page, "mimic/readmission/sweep")
    assert re.search(r"0\.0 % used, \d+\.\d % reserved, \d+\.\d % left ε 0, limit 4 at", readmission), readmission
    assert "half reserved" in readmission
    assert re.search(r"0\.0 % used, \d+\.\d % left \(fullest: mimic/ ?readmission \)", sweep), sweep
    assert "limited" in sweep
    refusals = page.region("Latest refusals")
    assert re.search("transformer .* 9 000 ", text_of(refusals)), text_of(refusals)
    assert re.match(r"/decisions/run_\w+/\d+$", next(refusals.iter("a")).get("href", ""))
    assert " pending " in text_of(page.region("Unfinished runs"))


def test_overview_is_searched_without_script(sample: Ledger) -> None:
    person = visitor(sample)
    assert populations(person.open("/?find=ICU")) == ["mimic"]
    assert "No visible path contains “nobody”" in person.open("/?find=nobody").words
    times = [text_of(each) for each in person.open("/").root.iter("time")]
    assert times
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", each) for each in times)


def test_tag_of_overview_changes_with_person_and_search(sample: Ledger) -> None:
    person = visitor(sample)
    tag = re.findall(r'data-tag="([^"]+)"', person.open("/").reply.text)[0].replace("&#34;", '"')
    same = person.open("/", X_Part="page", If_None_Match=tag).reply
    if same.status_code != 304:  # a minute ended in between
        same = person.open("/", X_Part="page", If_None_Match=same.headers["etag"]).reply
    assert (same.status_code, same.content) == (304, b"")
    assert person.open("/", X_Part="page", If_None_Match='"another"').status == 200
    assert person.open("/?find=mimic", X_Part="page", If_None_Match=tag).status == 200
    assert visitor(sample, "auditor").open("/", X_Part="page", If_None_Match=tag).status == 200


def test_organisation_without_accounts_is_told_how_to_begin(sample: Ledger) -> None:
    page = visitor(sample, "viewer", "clinic").open("/")
    for said in ("No populations yet", "No unfinished runs", "No refusals"):
        assert said in page.words
    assert "icu-team" not in page.part("page")


def test_key_of_account_shows_what_is_under_it(own_sample: Ledger, hospital: Hospital) -> None:
    text = scoped_visitor(own_sample, "viewer", hospital.ids["mimic/readmission"]).open("/").reply.text
    shown = re.findall(r'title="(mimic[^"]*|imaging[^"]*|st[^"]*)"', text)
    assert shown == ["mimic/readmission", "mimic/readmission/sweep"]
    assert "gradient-boosting" in text
    assert not re.search("icu-team|imaging|stroke", text)


def test_damaged_row_hides_no_other_account(ledger: Ledger) -> None:
    population, team = str(ledger.population()["id"]), str(ledger.budget()["id"])
    other = str(ledger.population("imaging")["id"])
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {}, "trainer").is_success
    with tampering(ledger.database) as tx:
        set_account(tx, TEAM, uncompacted_charges="[1")
    admin = visitor(ledger, "admin")
    answer = admin.open("/").words
    assert "1 over the limit, quarantined or damaged" in answer
    assert re.search("icu-team damaged row: verify the ledger unreadable", answer)
    assert "imaging 0.0 % used, 100.0 % left ε 0, limit 3 at δ 1e-5" in answer
    for path in (f"/accounts/{other}", f"/accounts/{population}", "/planner", "/approvals", "/policies", "/keys"):
        assert admin.open(path).status == 200, path
    answer = admin.open(f"/accounts/{population}").words
    assert re.search(r"icu-team budget (under )?\d\.\d % unreadable", answer)
    assert "verify the ledger unreadable" in answer
    page = admin.open(f"/accounts/{team}")
    assert (page.status, page.reply.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert "The row of mimic/icu-team is damaged" in page.words


def test_guide_is_shown_to_roles_that_may_create(ledger: Ledger) -> None:
    for role, shown in (("viewer", False), ("trainer", False), ("budget_admin", True), ("admin", True)):
        assert ("First steps" in visitor(ledger, role).open("/").words) is shown, role


def test_registered_run_is_waited_for(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget('o"neil <b>')
    person = visitor(ledger, "admin")
    lines = [each.text or "" for each in person.open("/").root.iter("pre") if "data-copy" in each.attrib]
    assert 'budget="mimic/o\\u0022neil' in lines[-1].replace('\\"', "\\u0022")
    run = ledger.run('mimic/o"neil <b>', event=SAMPLED)
    page = person.open("/")
    assert "is registered. Waiting for its first step" in page.words
    assert not any("aria-current" in each.attrib for each in page.root.iter("li"))
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
    assert "has taken 2 steps" in person.open("/").words
    ledger.run('mimic/o"neil <b>', name="second")
    assert person.open("/").part("first") == ""
