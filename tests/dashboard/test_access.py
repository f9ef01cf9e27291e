"""Every page asks for a sign-in, shows nothing of another organisation, and loads nothing from elsewhere."""

import re

import pytest
from fastapi.routing import APIRoute

from app.dashboard import api_docs, assets, login
from app.ledger.permissions import Role
from app.main import DASHBOARD_ROUTERS
from tests.conftest import Ledger
from tests.dashboard.page_visitor import visitor
from tests.dashboard.sample_hospital import Hospital
from tests.soak import thinned

OPEN = (assets, api_docs, login)
"""What people see before they are signed in."""

PATHS = sorted(
    route.path
    for module in DASHBOARD_ROUTERS
    if module not in OPEN
    for route in module.routes.routes
    if isinstance(route, APIRoute) and route.methods == {"GET"}
)
RUN = "imaging/segmentation/unet"
BROWSERS = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def address(path: str, hospital: Hospital) -> str:
    """A page about something of the hospital's."""
    named = {"account_id": hospital.ids["imaging"], "run_id": hospital.ids[RUN], "position": "0"}
    return re.sub(r"\{(\w+)\}", lambda found: named[found[1]], path)


def test_page_shows_nothing_to_strangers(sample: Ledger, hospital: Hospital) -> None:
    assert {"/", "/accounts/{account_id}", "/runs/{run_id}", "/planner", "/decisions", "/audit", "/keys"} <= set(PATHS)
    other = visitor(sample, "admin", "clinic")
    for path in PATHS:
        wanted = address(path, hospital)
        reply = sample.http.get(wanted, follow_redirects=False)
        assert (reply.status_code, reply.content) == (303, b""), path
        assert reply.headers["location"].startswith("/sign-in")
        assert sample.http.get(wanted, headers={"X-Part": "page"}).status_code == 401
        page = other.open(wanted)
        assert page.status == (404 if "{" in path else 200), path
        assert "text/html" in page.reply.headers["content-type"]
        assert not re.search("unet|segmentation|stroke|lstm|imaging", page.reply.text), path


@pytest.mark.parametrize("role", thinned(list(Role), 4))
def test_role_sees_the_pages_that_navigation_leads_to(sample: Ledger, hospital: Hospital, role: Role) -> None:
    person = visitor(sample, str(role))
    led = set(re.findall(r'<li><a href="(/\w*)"', person.open("/").reply.text))
    assert {"/", "/planner", "/decisions"} <= led
    for path in PATHS:
        reply = person.open(address(path, hospital)).reply
        closed = path in {"/audit", "/keys", "/alerts"} and path not in led
        assert reply.status_code == (403 if closed else 200), path
        policy = reply.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "default-src 'none'" in policy
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-frame-options"] == "DENY"
        assert "Cookie" in reply.headers["vary"]
        assert not re.search(r"<script(?![^>]*(src=|type=\"application/json\"))|\son\w+=| style=|<style", reply.text)
        assert re.findall(r'(?:src|href|action|srcset)="(https?:|//)[^"]*"', reply.text) == []


def test_poll_with_nothing_new_is_answered_by_304(sample: Ledger, hospital: Hospital) -> None:
    person = visitor(sample, "admin")
    for path in (*PATHS, "/approvals?account=mimic/icu-team", "/policies?account=imaging", "/alerts?account=mimic"):
        wanted, status = address(path, hospital), 0
        for _ in range(3):  # a minute may end in between, and the first use of a session is written once
            tag = person.open(wanted, X_Part="page").reply.headers["etag"]
            status = person.open(wanted, X_Part="page", If_None_Match=tag).status
            if status == 304:
                break
        assert status == 304, path


def test_unknown_address_is_answered_by_a_page_or_by_a_problem_for_programs(sample: Ledger) -> None:
    person = visitor(sample)
    for path in ("/nowhere", "/v1beta", "/decisions/", "/assets/x/y/z", "/%3Cb%3E"):
        stranger = sample.http.get(path, headers={"Accept": BROWSERS})
        for reply in (stranger, person.open(path, Accept=BROWSERS).reply):
            assert (reply.status_code, reply.headers["content-type"][:9]) == (404, "text/html"), path
            assert "Go to the overview" in reply.text
            assert "There is no" in reply.text
            assert "<b>" not in reply.text
    for path, accept in (("/nowhere", "*/*"), ("/nowhere", "application/json"), ("/v1/nowhere", BROWSERS)):
        reply = person.open(path, Accept=accept).reply
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
        assert reply.headers["content-type"] == "application/problem+json"
    reply = sample.http.delete("/planner", headers=person.cookie | {"Accept": BROWSERS})
    assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/accounts/a%00b", 404), ("/runs/%00", 404), ("/decisions?account=%00", 422), ("/audit?actor=%00", 422)],
)
def test_address_with_nul_is_refused_before_the_database(sample: Ledger, path: str, status: int) -> None:
    reply = visitor(sample, "admin").open(path).reply
    assert (reply.status_code, reply.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "character NUL" in reply.text
