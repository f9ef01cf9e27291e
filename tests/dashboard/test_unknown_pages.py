"""Addresses that mean nothing, and the API's description, in a browser."""

import re
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.page_actions import browser_client

BROWSERS = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
def visitor(server: LiveServer) -> Iterator[httpx2.Client]:
    with browser_client(server, "viewer") as client:
        yield client


@pytest.mark.parametrize("path", ["/nowhere", "/planer", "/v1beta", "/decisions/", "/assets/x/y/z", "/%3Cb%3E"])
def test_who_mistypes_an_address_gets_a_page(server: LiveServer, visitor: httpx2.Client, path: str) -> None:
    with httpx2.Client(base_url=server.url, trust_env=False) as stranger:
        replies = [client.get(path, headers={"Accept": BROWSERS}) for client in (visitor, stranger)]
    for reply in replies:
        assert reply.status_code == 404
        assert reply.headers["content-type"].startswith("text/html")
        assert "Go to the overview" in reply.text
        assert "There is no" in reply.text
        assert "<b>" not in reply.text


@pytest.mark.parametrize(
    ("path", "accept"),
    [("/nowhere", "*/*"), ("/nowhere", "application/json"), ("/v1/nowhere", BROWSERS), ("/v1", BROWSERS)],
)
def test_programs_get_the_problem(visitor: httpx2.Client, path: str, accept: str) -> None:
    reply = visitor.get(path, headers={"Accept": accept})
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/accounts/a%00b", 404), ("/runs/%00", 404), ("/decisions?account=%00", 422), ("/audit?actor=%00", 422)],
)
def test_an_address_with_a_nul_is_no_trouble_of_the_database(visitor: httpx2.Client, path: str, status: int) -> None:
    reply = visitor.get(path)
    assert (reply.status_code, reply.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "character NUL" in reply.text


def test_a_method_that_a_page_does_not_take_is_a_problem(visitor: httpx2.Client) -> None:
    reply = visitor.delete("/planner", headers={"Accept": BROWSERS})
    assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed")


def test_who_is_signed_in_reads_the_description_and_tries_a_read(
    page: Page, server: LiveServer, sign_in: SignIn
) -> None:
    hosts: set[str] = set()
    page.on("request", lambda asked: hosts.add(re.sub(r"^(\w+://[^/]*|data:).*", r"\1", asked.url, flags=re.DOTALL)))
    sign_in(page, server, "viewer")
    page.get_by_role("link", name="API", exact=True).click()
    operation = page.locator("#operations-populations-listPopulations")
    operation.get_by_role("button").first.click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table .response-col_status").first).to_have_text("Code")
    expect(operation.locator(".live-responses-table")).to_contain_text("stroke-registry")
    assert hosts - {"data:"} == {server.url}
