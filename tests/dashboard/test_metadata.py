"""Accounts are renamed, described and archived; what people wrote stands on pages as text, whatever it holds."""

import html
import re

from tests.conftest import Ledger
from tests.dashboard.page_visitor import text_of, visitor
from tests.dashboard.sample_hospital import Hospital

WRITTEN = {
    "display_name": "Übung <b>1</b>",
    "description": "First line <img src=x onerror=alert(1)>.\n{{ 7*7 }} second.",
    "owner": "\"><script>alert('owner')</script>",
    "labels": {"team": "<i>icu</i>", "empty": ""},
    "links": [{"title": "<u>MLflow</u>", "url": "https://mlflow.example/?a=1&b='%22%3Cscript%3E"}],
}


def test_metadata_and_paths_are_shown_as_text(ledger: Ledger) -> None:
    ids = {"populations": str(ledger.population()["id"]), "budgets": str(ledger.budget()["id"]), "runs": ledger.run()}
    for kind, about in ids.items():
        assert ledger.patch(f"/v1/{kind}/{about}", WRITTEN).status_code == 200
        page = visitor(ledger).open(f"/{'runs' if kind == 'runs' else 'accounts'}/{about}").reply
        for text in ("Übung <b>1</b>", "{{ 7*7 }} second.", WRITTEN["owner"], "team: <i>icu</i>", "<u>MLflow</u>"):
            assert html.escape(str(text)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page.text, text
        for raw in ("<b>1", "<img src=x", "<script>alert", "<i>icu", "<u>ML", "b='\""):
            assert raw not in page.text, raw
        [link] = [tag for tag in page.text.split("<a ") if tag.startswith('href="https://mlflow.example')]
        assert 'rel="noopener noreferrer"' in link.partition(">")[0]
    name = "<img src=x onerror=alert(1)>&lt;"
    ledger.population(name)
    overview = visitor(ledger).open("/")
    assert any(text_of(each) == name for each in overview.root.iter("a"))
    assert "x" not in [each.get("src") for each in overview.root.iter("img")]


def test_archived_accounts_are_not_listed(ledger: Ledger) -> None:
    ledger.population()
    budget = str(ledger.budget()["id"])
    population = str(ledger.population("other")["id"])
    ledger.budget("inner", "other")
    run = ledger.run(name="finished-model")
    assert ledger.post(f"/v1/runs/{run}/complete", None).status_code == 200
    person = visitor(ledger)
    assert "finished-model" in person.open(f"/accounts/{budget}").words
    assert ledger.post(f"/v1/accounts/{run}/archive", None).status_code == 200
    assert ledger.post(f"/v1/accounts/{population}/archive", None).status_code == 200
    assert "finished-model" not in person.open(f"/accounts/{budget}").words
    assert "inner" not in person.open("/").words
    shown = person.open(f"/accounts/{population}").words
    assert "inner" in shown, "what was archived with it is on its own page"
    assert "archived since" in shown
    assert "archived since" in person.open(f"/runs/{run}").words


def test_details_are_shown_in_their_form_and_unarchival_is_proposed(own_sample: Ledger, hospital: Hospital) -> None:
    budget, path = hospital.ids["mimic/readmission/sweep"], "mimic/readmission/sweep"
    about = {
        "display_name": "Sweep of widths",
        "owner": "icu@hospital.example",
        "labels": {"study": "3", "team": "icu"},
    }
    links = {"links": [{"title": "MLflow runs", "url": "https://mlflow.example/runs/1"}]}
    assert own_sample.patch(f"/v1/budgets/{budget}", about | links).is_success
    officer = visitor(own_sample, "privacy_officer")
    page = officer.open(f"/accounts/{budget}")
    assert "Sweep of widths" in text_of(next(page.root.iter("h1")))
    fields = {name: value.strip() for name, value in page.fields("Save the details").items()}
    labels = {"labels": "study: 3\nteam: icu", "links": "MLflow runs https://mlflow.example/runs/1"}
    empty = {"description": "", "deployment": ""}
    assert fields == {name: str(about[name]) for name in ("display_name", "owner")} | empty | labels
    assert f"Archive {path}" in page.forms()
    assert own_sample.post(f"/v1/accounts/{budget}/archive", {"reason": "The study is over."}).is_success
    page = officer.open(f"/accounts/{budget}")
    assert "hidden from lists, and read-only" in page.part("about")
    form = page.forms()[f"Unarchive {path}"]
    assert (form.get("data-done202"), form.get("data-then202")) == (
        "Proposed. Another person approves it.",
        "/approvals",
    )
    assert own_sample.post(f"/v1/accounts/{budget}/unarchive", {"reason": "It goes on."}, "privacy_officer").is_success
    assert "would be unarchived: what it has left may be spent again" in officer.open("/approvals").words


def test_nothing_is_created_under_archived_account(own_sample: Ledger) -> None:
    over = str(own_sample.population("over")["id"])
    apart = {"composition": "parallel", "attestation": "Each record is of one month."}
    months = str(own_sample.budget("months", "over", **apart)["id"])
    team = str(own_sample.budget("team", "over")["id"])
    person = visitor(own_sample, "admin")
    forms = {over: {"open-budget"}, months: {"open-budget", "open-blocks"}, team: {"open-budget", "register-run"}}
    for archived in (False, True):
        if archived:
            assert own_sample.post(f"/v1/accounts/{over}/archive", {"reason": "It is over."}).status_code == 200
        for account, offered in forms.items():
            page = person.open(f"/accounts/{account}")
            there = {form for form in ("open-budget", "open-blocks", "register-run") if page.has(form)}
            assert there == (set() if archived else offered)
            assert ('data-call="POST /v1/accounts/{account_id}/limit"' in page.reply.text) is not archived
            assert ("Left 0.0 % nothing can be taken" in page.words) is archived
            assert page.has("steps") is not archived
            assert len(re.findall('class="notice"', page.reply.text)) == int(archived and account != over)
    offers = [each.get("value", "") for each in person.open("/experiments").get("budget-suggestions").iter("option")]
    assert not any(each.startswith("over") for each in offers)
    assert "mimic" in offers


def test_details_are_changed_by_roles_that_may(sample: Ledger, hospital: Hospital) -> None:
    trainer = visitor(sample, "trainer")
    assert not trainer.open(f"/accounts/{hospital.ids['mimic']}").has("edit-details")
    assert trainer.open(f"/runs/{hospital.refused}").has("edit-details")
