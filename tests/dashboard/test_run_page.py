"""The page of a run: its curve, its refusals, and whether it does what it has declared."""

from typing import Any

from tests.conftest import SAMPLED, Ledger
from tests.dashboard.page_visitor import Page, fields_of, text_of, value_of, visitor
from tests.dashboard.sample_hospital import Hospital

PLAN = {"events": [{"event": SAMPLED, "count": 100}], "lease_seconds": 3600}


def a_run(ledger: Ledger) -> str:
    ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})
    ledger.budget()
    return ledger.run()


def take(ledger: Ledger, run: str, count: int, **more: object) -> dict[str, Any]:
    """Take steps; return the answer, which may be a refusal."""
    answer: dict[str, Any] = ledger.post(f"/v1/runs/{run}/steps", {"count": count} | more, "trainer").json()
    return answer


def open_run(ledger: Ledger, run: str) -> Page:
    return visitor(ledger).open(f"/runs/{run}")


def test_page_follows_a_run_from_its_registration_to_its_end(ledger: Ledger) -> None:
    run = a_run(ledger)
    page = open_run(ledger, run)
    assert "No refusals" in page.words
    assert "No reservations" in page.words
    [drawn] = [each for each in page.charts()[0]["series"] if each["name"] == "If it goes on"]
    assert drawn["points"][-1][0] == ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]

    for _ in range(3):
        take(ledger, run, 5)
    answer = ledger.get(f"/v1/runs/{run}/history").json()["points"]
    series = {each["role"]: each["points"] for each in open_run(ledger, run).charts()[0]["series"]}
    assert series["spent"][1:] == [[each["next_step"], each["epsilon"]] for each in answer]
    assert "limit" not in series, "others share it"
    remaining = ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]
    assert series["projected"][0] == series["spent"][-1]
    assert series["projected"][-1][0] == min(15 + remaining, 15 + 3 * 15)

    refused = take(ledger, run, 10_000_000)
    page = open_run(ledger, run)
    assert refused["detail"].partition(" refused: ")[2] in page.text
    assert "exhausted." not in page.words
    assert [each["kind"] for each in page.charts()[0]["series"] if each["role"] == "refused"] == ["points"]

    statement = f"/v1/runs/{run}/statement.html"
    assert statement in page.links("/v1/")
    assert "Privacy statement of a run" in page.visitor.open(statement).reply.text

    assert ledger.post(f"/v1/runs/{run}/complete", {"reason": "budget_exhausted"}, "trainer").status_code == 200
    page = open_run(ledger, run)
    assert "completed budget used up at" in page.words
    assert "the run has ended" in page.words
    assert "more steps fit" not in page.words
    assert "projected" not in {each["role"] for each in page.charts()[0]["series"]}


def test_projection_ends_where_budget_is_exhausted(ledger: Ledger) -> None:
    run = a_run(ledger)
    remaining = take(ledger, run, 100)["steps_remaining"]
    take(ledger, run, remaining // 2)
    chart = open_run(ledger, run).charts()[0]
    [projected] = [each["points"] for each in chart["series"] if each["role"] == "projected"]
    assert projected[-1][0] == 100 + remaining
    assert projected[-1][1] <= 1.0
    assert {"x": 100.0 + remaining, "label": "no room left in mimic/icu-team"} in chart["marks"]


def test_attempts_and_deviations_of_a_run_are_drawn(ledger: Ledger) -> None:
    run = a_run(ledger)
    take(ledger, run, 10)
    take(ledger, run, 10, event=SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 2.5}})
    page = open_run(ledger, run)
    noise = page.charts()[1]
    assert noise["y"]["label"] == "Noise multiplier"
    assert noise["series"][0]["points"] == [[0, 1.1], [10, 2.5], [20, 2.5]]
    assert "noise multiplier 1.1 2.5 10" in page.words
    assert ledger.post(f"/v1/runs/{run}/attempts", {"first_step": 4}, "trainer").status_code == 201
    take(ledger, run, 2, attempt=2)
    drawn = open_run(ledger, run).charts()[0]["series"]
    first, second = (each["points"] for each in drawn if each["name"].startswith("Attempt"))
    assert second[0] == [4, first[-1][1]], "it begins with what was spent before"
    assert second[-1][1] > first[-1][1]


def test_reservation_is_listed_with_steps_that_a_lowered_limit_revoked(ledger: Ledger) -> None:
    run = a_run(ledger)
    made = ledger.post(f"/v1/runs/{run}/reservations", PLAN, "trainer").json()
    page = open_run(ledger, run)
    assert f"{made['id']} active 0 of 100" in page.words
    assert "revoked" not in page.words
    assert ledger.set_limit(ledger.get(f"/v1/runs/{run}").json()["budget"], 0.1).status_code == 200
    page = open_run(ledger, run)
    assert "active 0 of 100 100 revoked" in page.words
    assert "Revoked steps are refused" in page.words
    assert "No data yet" in open_run(ledger, ledger.run(name="bare", event=None)).words


def test_run_of_another_organisation_is_not_found(ledger: Ledger) -> None:
    run = a_run(ledger)
    stranger = visitor(ledger, "admin", "clinic")
    theirs, nowhere = stranger.open(f"/runs/{run}"), stranger.open("/runs/run_nowhere")
    assert (theirs.status, nowhere.status) == (404, 404)
    assert theirs.words.replace(run, "run_nowhere").split("request")[0] == nowhere.words.split("request")[0]


def test_poll_is_304_until_the_same_budget_is_charged(ledger: Ledger) -> None:
    run = a_run(ledger)
    other, person = ledger.run(name="other"), visitor(ledger)
    first = person.open(f"/runs/{run}", X_Part="page")
    tag = first.reply.headers["etag"]
    assert person.open(f"/runs/{run}", X_Part="page", If_None_Match=tag).status == 304
    take(ledger, other, 1)
    found = person.open(f"/runs/{run}", X_Part="page", If_None_Match=tag)
    assert found.status == 200
    assert ledger.patch(f"/v1/runs/{run}", {"labels": {"team": "icu"}}).status_code == 200
    found = person.open(f"/runs/{run}", X_Part="page", If_None_Match=found.reply.headers["etag"])
    assert "team: icu" in found.words


def test_limit_request_outside_of_scope_is_shown_to_its_author(ledger: Ledger) -> None:
    run = a_run(ledger)
    found = ledger.get(f"/v1/runs/{run}").json()
    higher = {"limit": {"epsilon": 90.0, "delta": 1e-5}}
    for name, role in {"team": "trainer", "colleague": "viewer"}.items():
        body = {"name": name, "role": role, "scope": found["budget"]}
        ledger.keys["hospital", name] = ledger.post("/v1/api-keys", body).json()["key"]
    population = found["path"].split("/")[0]
    body = higher | {"reason": "Of the planner.", "account": population}
    made = ledger.post(f"/v1/runs/{run}/limit-requests", body, "admin").json()

    def shown(name: str) -> set[str]:
        text = visitor(ledger, name).open(f"/runs/{run}").words
        return {reason for reason in ("Of the planner.", "Of the team.") if reason in text}

    assert (shown("viewer"), shown("team"), shown("colleague")) == ({"Of the planner."}, set(), set())
    assert ledger.post(f"/v1/proposals/{made['id']}/reject", {}, "privacy_officer").status_code == 200
    body = higher | {"reason": "Of the team.", "account": population}
    assert ledger.post(f"/v1/runs/{run}/limit-requests", body, "team").status_code == 201
    assert (shown("viewer"), shown("colleague")) == ({"Of the planner.", "Of the team."}, set())
    assert shown("team") == {"Of the team."}


def test_alternatives_are_outdated_once_a_limit_was_changed(ledger: Ledger) -> None:
    run = a_run(ledger)
    take(ledger, run, 10**7)
    [refusal] = ledger.get(f"/v1/decisions?run={run}&decision=refused").json()["items"]
    pages = (f"/runs/{run}", f"/decisions/{run}/{refusal['position']}")
    assert not any("Outdated" in visitor(ledger).open(page).words for page in pages)
    made = ledger.set_limit(ledger.get(f"/v1/runs/{run}").json()["budget"], 1.5).json()
    assert ledger.post(f"/v1/proposals/{made['id']}/approve", {}, "privacy_officer").status_code == 200
    for page in pages:
        assert "Outdated : the limit of mimic/icu-team was changed to epsilon 1.5" in visitor(ledger).open(page).words
    take(ledger, run, 10**7)
    assert "Outdated" not in open_run(ledger, run).words


def test_constant_noise_of_a_run_without_default_event_is_shown(ledger: Ledger) -> None:
    a_run(ledger)
    run = ledger.run(name="adapter", event=None)
    take(ledger, run, 10, event=SAMPLED)
    words = open_run(ledger, run).words
    told = "Gaussian, noise multiplier 1.1, Poisson sampling with probability"
    assert f"Steps so far: {told}" in words
    assert f"the same noise and sampling: {told}" in words


def test_more_noise_than_declared_is_no_warning_and_hides_no_less(ledger: Ledger) -> None:
    ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})
    ledger.budget(limit={"epsilon": 7.0, "delta": 1e-5})
    run = ledger.run()
    for noise, shown in ((2.5, "more private than declared"), (1.05, "deviates")):
        take(ledger, run, 1, event=SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": noise}})
        for page in ("/", "/runs"):
            assert f"active {shown}" in visitor(ledger).open(page).words
    assert "Deviates from its declaration" in open_run(ledger, run).words


def test_requested_limit_is_shown_on_the_page_of_its_run_only(ledger: Ledger) -> None:
    run, other = a_run(ledger), ledger.run(name="other")
    budget = ledger.get(f"/v1/runs/{run}").json()["budget"]
    body = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "For one run.", "account": budget}
    assert ledger.post(f"/v1/runs/{run}/limit-requests", body, "trainer").status_code == 201
    assert ledger.set_limit("mimic", 9.0, "planner").status_code == 201
    shown, unrelated = (open_run(ledger, each).words for each in (run, other))
    assert ("For one run." in shown, "Requested limits" in unrelated) == (True, False)
    assert "Epsilon 9" not in shown
    assert f'href="/runs/{run}"' in visitor(ledger).open("/approvals").reply.text


def test_limit_that_was_requested_or_reached_is_not_offered(ledger: Ledger) -> None:
    run = a_run(ledger)
    refusal = ledger.post(f"/v1/runs/{run}/steps", {"count": 10**7}, "trainer").json()
    [higher] = [each for each in refusal["alternatives"] if each["type"] == "higher_limit"]
    asked = higher["limits"][0]

    def offered() -> bool:
        page = visitor(ledger, "trainer").open(f"/runs/{run}")
        return f'name="account" value="{asked["account"]}"' in page.reply.text

    assert offered()
    limit = {"epsilon": asked["epsilon"], "delta": asked["delta"]}
    body = {"account": asked["account"], "limit": limit, "reason": "All epochs."}
    made = ledger.post(f"/v1/runs/{run}/limit-requests", body, "trainer").json()
    assert not offered()
    assert ledger.post(f"/v1/proposals/{made['id']}/reject", {}, "privacy_officer").status_code == 200
    assert offered()
    made = ledger.post(f"/v1/runs/{run}/limit-requests", body, "trainer").json()
    assert ledger.post(f"/v1/proposals/{made['id']}/approve", {}, "privacy_officer").status_code == 200
    assert not offered()


def test_page_is_read_without_script(sample: Ledger, hospital: Hospital) -> None:
    page = visitor(sample).open(f"/runs/{hospital.refused}")
    assert text_of(next(page.root.iter("h1"))) == "transformer"
    [picture] = [each.get("src", "") for each in page.get("curve").iter("img")]
    image = sample.http.get(picture, headers=page.visitor.cookie)
    assert image.headers["content-type"].startswith("image/")
    assert "Refused" in text_of(next(page.get("curve").iter("table")))
    assert "9 000" in text_of(page.region("Refused steps"))


def test_refused_run_offers_a_request_for_the_limit_that_it_needs(own_sample: Ledger) -> None:
    budget = own_sample.budget("asking", "stroke-registry", limit={"epsilon": 0.4, "delta": 1e-6})["id"]
    run = own_sample.run("stroke-registry/asking", expected_steps=4000)
    offered = {each["type"]: each for each in take(own_sample, run, 4000)["alternatives"]}
    [raised] = [each for each in offered["higher_limit"]["limits"] if each["account"] == budget]
    page = visitor(own_sample, "trainer").open(f"/runs/{run}")
    assert "all 4,000 remaining steps would fit" in text_of(page.region("Alternatives"))
    requests = [each for each in page.root.iter("form") if "limit-requests" in each.get("data-call", "")]
    several = [{each.get("name"): value_of(each) for each in fields_of(form)} for form in requests]
    [fields] = [each for each in several if each["account"] == budget]
    limit = {name: fields[f"limit.{name}"] for name in ("epsilon", "delta")}
    assert limit == {name: str(raised[name]) for name in limit}
    body = {"account": budget, "limit": {name: raised[name] for name in limit}, "reason": "All epochs, as planned."}
    assert own_sample.post(f"/v1/runs/{run}/limit-requests", body, "trainer").is_success
    page = visitor(own_sample, "trainer").open(f"/runs/{run}")
    assert "waits for approval" in text_of(page.region("Requests"))
    assert "All epochs, as planned." in text_of(page.region("Requests"))


def test_lineage_links_up_and_down(ledger: Ledger) -> None:
    base = a_run(ledger)
    take(ledger, base, 10)
    model = {"name": "gpt2", "sha256": "5a" * 32}
    middle = ledger.run(name="middle", starts_from=[{"run": base}, model])
    last = ledger.run(name="last", starts_from=[{"run": middle}])
    page = open_run(ledger, base)
    assert "The run did not declare what it starts from." in page.words
    assert f"/runs/{middle}" in page.links("/runs/")
    assert f"/runs/{last}" not in page.links("/runs/")
    page = open_run(ledger, last)
    assert {f"/runs/{base}", f"/runs/{middle}"} <= set(page.links("/runs/"))
    assert model["sha256"] in page.words
    assert "by 3 runs of this lineage" in page.words
    assert "1 of these runs did not declare what it starts from" in page.words
    path = f"/runs/{last}"
    total = page.words.partition("In total of mimic")[2]
    tag = visitor(ledger).open(path, X_Part="page").reply.headers["etag"]
    take(ledger, base, 10)
    page = visitor(ledger).open(path, X_Part="page", If_None_Match=tag)
    assert page.reply.status_code == 200, "the charges of an origin change its total"
    assert page.words.partition("In total of mimic")[2] != total
    assert "Starts from nothing" in open_run(ledger, ledger.run(name="fresh", starts_from=[])).words
