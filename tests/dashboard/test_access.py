"""Every page asks who is there, shows nobody what is another organisation's, and loads nothing from elsewhere."""

import re

import httpx2
import pytest
from fastapi.routing import APIRoute

from app.dashboard import api_docs, assets, login
from app.ledger.permissions import Role
from app.main import DASHBOARD_ROUTERS
from tests.conftest import LiveServer
from tests.dashboard.page_actions import browser_client
from tests.dashboard.sample_hospital import Hospital

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


def address(path: str, hospital: Hospital) -> str:
    """A page about something of the hospital's."""
    named = {"account_id": hospital.ids["imaging"], "run_id": hospital.ids[RUN], "position": "0"}
    return re.sub(r"\{(\w+)\}", lambda found: named[found[1]], path)


def test_there_are_pages() -> None:
    assert len(PATHS) >= 11
    assert {"/", "/accounts/{account_id}", "/runs/{run_id}", "/planner", "/decisions", "/audit", "/keys"} <= set(PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_a_stranger_is_led_to_the_sign_in(server: LiveServer, hospital: Hospital, path: str) -> None:
    wanted = address(path, hospital)
    with httpx2.Client(base_url=server.url, trust_env=False) as client:
        reply = client.get(wanted)
        assert (reply.status_code, reply.content) == (303, b"")
        assert reply.headers["location"].startswith("/sign-in")
        assert client.get(wanted, headers={"X-Part": "page"}).status_code == 401


@pytest.mark.parametrize("path", [path for path in PATHS if "{" in path])
def test_what_is_of_another_organisation_is_not_there(server: LiveServer, hospital: Hospital, path: str) -> None:
    with browser_client(server, "admin", "clinic") as client:
        for headers in ({}, {"X-Part": "page"}):
            reply = client.get(address(path, hospital), headers=headers)
            assert reply.status_code == 404
            assert "text/html" in reply.headers["content-type"]
            assert not re.search("unet|segmentation|imaging", reply.text)


@pytest.mark.parametrize("path", [path for path in PATHS if "{" not in path])
def test_lists_have_nothing_of_another_organisation(server: LiveServer, path: str) -> None:
    with browser_client(server, "admin", "clinic") as client:
        reply = client.get(path)
    assert reply.status_code == 200
    assert not re.search("unet|segmentation|stroke|lstm", reply.text)


@pytest.mark.parametrize("role", list(Role))
def test_every_role_sees_the_pages_that_it_is_led_to(server: LiveServer, hospital: Hospital, role: Role) -> None:
    with browser_client(server, str(role)) as client:
        led = set(re.findall(r'<li><a href="(/\w*)"', client.get("/").text))
        assert {"/", "/planner", "/decisions"} <= led
        for path in PATHS:
            reply = client.get(address(path, hospital))
            closed = path in {"/audit", "/keys", "/alerts"} and path not in led
            assert reply.status_code == (403 if closed else 200), path
            policy = reply.headers["content-security-policy"]
            assert "unsafe" not in policy
            assert "http" not in policy
            assert reply.headers["cache-control"] == "no-store"
            assert not re.search(
                r"<script(?![^>]*(src=|type=\"application/json\"))|\son\w+=| style=|<style", reply.text
            )
            foreign = re.findall(r'(?:src|href|action|srcset)="(https?:|//)[^"]*"', reply.text)
            assert foreign == []
