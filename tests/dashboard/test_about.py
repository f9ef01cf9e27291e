"""What people wrote about accounts stands on their pages as text, whatever it holds; archived ones are not listed."""

import html

import pytest

from tests.conftest import Ledger
from tests.dashboard.html_reader import visit, words
from tests.login_helpers import signed_in

WRITTEN = {
    "display_name": "Übung <b>1</b>",
    "description": "First line <img src=x onerror=alert(1)>.\n{{ 7*7 }} second.",
    "owner": "\"><script>alert('owner')</script>",
    "labels": {"team": "<i>icu</i>", "empty": ""},
    "links": [{"title": "<u>MLflow</u>", "url": "https://mlflow.example/?a=1&b='%22%3Cscript%3E"}],
}


@pytest.mark.parametrize("kind", ["populations", "budgets", "runs"])
def test_what_people_wrote_is_text(ledger: Ledger, kind: str) -> None:
    ids = {"populations": str(ledger.population()["id"]), "budgets": str(ledger.budget()["id"]), "runs": ledger.run()}
    assert ledger.patch(f"/v1/{kind}/{ids[kind]}", WRITTEN).status_code == 200
    page = visit(ledger, f"/{'runs' if kind == 'runs' else 'accounts'}/{ids[kind]}", signed_in(ledger))
    for text in ("Übung <b>1</b>", "{{ 7*7 }} second.", WRITTEN["owner"], "team: <i>icu</i>", "<u>MLflow</u>"):
        assert html.escape(str(text)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page.text, text
    for raw in ("<b>1", "<img src=x", "<script>alert", "<i>icu", "<u>ML", "b='\""):
        assert raw not in page.text, raw
    [link] = [tag for tag in page.text.split("<a ") if tag.startswith('href="https://mlflow.example')]
    assert 'rel="noopener noreferrer"' in link.partition(">")[0]


def test_a_run_page_is_made_anew_when_its_metadata_changes(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    run = ledger.run()
    headers = {"Cookie": signed_in(ledger)["Cookie"], "X-Part": "page"}
    page = ledger.http.get(f"/runs/{run}", headers=headers)
    while page.status_code != 304:  # a minute may end in between
        again = headers | {"If-None-Match": page.headers["ETag"]}
        page = ledger.http.get(f"/runs/{run}", headers=again)
    assert ledger.patch(f"/v1/runs/{run}", {"labels": {"team": "icu"}}).status_code == 200
    assert "team: icu" in ledger.http.get(f"/runs/{run}", headers=again).text


def test_archived_accounts_are_not_listed(ledger: Ledger) -> None:
    ledger.population()
    budget = str(ledger.budget()["id"])
    population = str(ledger.population("other")["id"])
    ledger.budget("inner", "other")
    run = ledger.run(name="finished-model")
    assert ledger.post(f"/v1/runs/{run}/complete", None).status_code == 200
    cookie = signed_in(ledger)
    assert "finished-model" in words(visit(ledger, f"/accounts/{budget}", cookie))
    assert ledger.post(f"/v1/accounts/{run}/archive", None).status_code == 200
    assert ledger.post(f"/v1/accounts/{population}/archive", None).status_code == 200
    assert "finished-model" not in words(visit(ledger, f"/accounts/{budget}", cookie))
    assert "inner" not in words(visit(ledger, "/", cookie))
    shown = words(visit(ledger, f"/accounts/{population}", cookie))
    assert "inner" in shown, "what was archived with it is on its own page"
    assert "archived since" in shown
    assert "archived since" in words(visit(ledger, f"/runs/{run}", cookie))
