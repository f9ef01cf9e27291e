"""`static/calls.js`: what changes something is asked for, sent once as JSON, and told."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from app.dashboard.assets import asset

HOME = "http://localhost:9"
"""Where nothing answers; a browser takes it for a place as safe as one with TLS."""

HEAD = """<!doctype html><html lang="en"><head><title>Try</title><meta name="csrf-token" content="its-token">
<script type="module" src="/calls.js"></script></head><body>
<main id="page" tabindex="-1"><section data-live id="s"></section>"""
TAIL = '</main><p id="message" role="status" aria-live="polite"></p></body></html>'

MANY_KINDS = """<form data-call="PUT /v1/accounts/{account}/policy" data-with="policy" data-if-match='"acc-policy-3"'>
<input type="hidden" name="account" value="a/b">
<label>Epsilon <input name="policy.limit.epsilon" type="number" step="any" data-type="number" value="1.5"></label>
<label>Left out <input name="policy.max_delta" data-type="number"></label>
<label>Plan <input type="checkbox" name="policy.require_plan" checked></label>
<label>Persons <select name="policy.two" data-type="boolean"><option value="true">yes</option></select></label>
<label>G <input type="checkbox" name="policy.mechanisms" value="gaussian" data-type="list" checked></label>
<label>L <input type="checkbox" name="policy.mechanisms" value="laplace" data-type="list" checked></label>
<label>R <input type="checkbox" name="policy.roles" value="x" data-type="list"></label>
<label>T <input name="thresholds" data-type="list" data-item="number" value="0.5, 0.9"></label>
<label>None <input name="none" data-type="list" data-keep value=""></label>
<label>Event <textarea name="event" data-type="json">{"type": "gaussian"}</textarea></label>
<label>Ends <input name="ends" type="datetime-local" data-type="moment" value="2027-01-01T00:00"></label>
<label>Reason <input name="reason" value="Because."></label>
<button>Save</button></form>"""

ONE = """<form data-call="POST /v1/runs"{more}><label>Name <input name="limit.name" value="n"></label>
<button>Send</button></form>"""


@dataclass
class Api:
    """What the page's server answers, and what it was sent.

    Args:
        status: of every answer.
        answer: its content.
        broken: whether it hangs up instead.
        held: answers that wait; None: none do.
    """

    status: int = 200
    answer: dict[str, Any] = field(default_factory=dict)
    broken: bool = False
    held: list[Route] | None = None
    sent: list[dict[str, Any]] = field(default_factory=list)

    def take(self, route: Route) -> None:
        asked = route.request
        body = json.loads(asked.post_data) if asked.post_data else None
        self.sent.append({"method": asked.method, "url": asked.url, "body": body, "headers": asked.headers})
        if self.broken:
            route.abort()
        elif self.held is not None:
            self.held.append(route)
        else:
            self.reply(route)

    def reply(self, route: Route) -> None:
        route.fulfill(status=self.status, json=self.answer)

    @property
    def keys(self) -> list[str]:
        """The Idempotency-Keys that were sent."""
        return [each["headers"]["idempotency-key"] for each in self.sent]


Show = Callable[[str], Api]


@pytest.fixture
def show(page: Page) -> Show:
    """Open a page with a form of which an API that is none takes the calls."""
    api = Api()

    def show(form: str) -> Api:
        page.route("**/v1/**", api.take)
        page.route(
            "**/calls.js",
            lambda route: route.fulfill(content_type="text/javascript", body=asset("api_forms.js").content),
        )
        whole = HEAD + form + TAIL
        for path in ("/try", "/elsewhere/**", "/sign-in*"):
            page.route(HOME + path, lambda route: route.fulfill(content_type="text/html", body=whole))
        page.goto(f"{HOME}/try")
        return api

    return show


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A page whose calls may fail."""
    return context.new_page()


def test_fields_become_json_of_their_kinds(page: Page, show: Show) -> None:
    api = show(MANY_KINDS)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#message")).to_have_text("Done.")
    (sent,) = api.sent
    assert (sent["method"], sent["url"]) == ("PUT", f"{HOME}/v1/accounts/a%2Fb/policy")
    assert sent["body"] == {
        "policy": {
            "limit": {"epsilon": 1.5},
            "require_plan": True,
            "two": True,
            "mechanisms": ["gaussian", "laplace"],
        },
        "thresholds": [0.5, 0.9],
        "none": [],
        "event": {"type": "gaussian"},
        "ends": "2027-01-01T00:00:00.000Z",
        "reason": "Because.",
    }
    assert sent["headers"]["x-csrf-token"] == "its-token"
    assert sent["headers"]["if-match"] == '"acc-policy-3"'
    assert sent["headers"]["content-type"] == "application/json"


def test_a_part_that_says_nothing_is_sent_all_the_same(page: Page, show: Show) -> None:
    api = show(
        '<form data-call="PUT /v1/policy" data-with="policy"><input name="policy.x"><button>Save</button></form>'
    )
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#message")).to_have_text("Done.")
    assert api.sent[0]["body"] == {"policy": {}}


def test_what_is_no_json_is_said_at_its_field_and_nothing_is_sent(page: Page, show: Show) -> None:
    api = show(
        '<form data-call="POST /v1/runs"><label>Event <textarea name="event" data-type="json">{</textarea></label>'
        "<button>Send</button></form>"
    )
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Event")).to_have_accessible_description("this is not JSON")
    assert api.sent == []


def test_two_clicks_send_one_call_and_the_button_says_so_meanwhile(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ""))
    api.held = []
    page.evaluate("() => { const b = document.querySelector('button'); b.click(); b.click(); }")
    button = page.get_by_role("button")
    expect(button).to_be_disabled()
    expect(button).to_have_text("Sending…")
    page.evaluate("() => document.querySelector('form').requestSubmit()")
    api.reply(api.held[0])
    expect(button).to_be_enabled()
    expect(button).to_have_text("Send")
    assert len(api.sent) == 1


def test_after_a_failure_of_the_network_the_same_is_sent_under_the_same_key(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ""))
    api.broken = True
    send = page.get_by_role("button", name="Send")
    send.click()
    expect(page.get_by_role("alert")).to_contain_text("It is safe to repeat")
    api.broken, api.status = False, 503
    send.click()
    expect(page.get_by_role("alert")).to_contain_text("503")
    api.status = 201
    send.click()
    expect(page.locator("#message")).to_have_text("Done.")
    expect(page.get_by_role("alert")).to_have_count(0)
    send.click()
    page.wait_for_timeout(200)
    first, second, third, fourth = api.keys
    assert first == second == third != fourth


def test_other_content_is_sent_under_another_key(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ""))
    api.broken = True
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Name").fill("another")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.wait_for_timeout(100)
    assert len(set(api.keys)) == 2


def test_a_question_says_what_will_happen_takes_a_reason_and_can_be_left(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ' data-confirm="Name it {limit.name}?" data-yes="Name it" data-reason="reason"'))
    send = page.get_by_role("button", name="Send")
    send.click()
    dialog = page.get_by_role("dialog", name="Name it")
    expect(dialog).to_contain_text("Name it n?")
    expect(dialog.get_by_label("Reason")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(send).to_be_focused()
    send.click()
    dialog.get_by_role("button", name="Cancel").click()
    send.click()
    dialog.get_by_role("button", name="Name it").click()  # without a reason: the browser asks for it
    assert api.sent == []
    dialog.get_by_label("Reason").fill("It has none.")
    dialog.get_by_role("button", name="Name it").click()
    expect(dialog).to_have_count(0)
    assert api.sent[0]["body"] == {"limit": {"name": "n"}, "reason": "It has none."}


def test_a_problem_is_told_at_the_field_that_it_is_about(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ' data-confirm="Sure?" data-yes="Yes"'))
    api.status = 422
    errors = [{"field": "body.limit.name", "message": "must be shorter"}, {"field": "body", "message": "is odd"}]
    api.answer = {"detail": "Both.", "errors": errors}
    page.get_by_role("button", name="Send").click()
    page.get_by_role("dialog").get_by_role("button", name="Yes").click()
    name = page.get_by_label("Name")
    expect(name).to_be_focused()
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(name).to_have_accessible_description("must be shorter")
    expect(page.get_by_role("alert")).to_have_text("body: is odd")
    api.status, api.answer = 409, {"detail": "The name is taken."}
    page.get_by_role("button", name="Send").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Yes").click()
    expect(dialog.get_by_role("alert")).to_have_text("The name is taken.")
    expect(name).not_to_have_attribute("aria-invalid", "true")


def test_a_session_that_ended_leads_to_the_sign_in_and_back(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ""))
    api.status = 401
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(f"{HOME}/sign-in?next=%2Ftry")


def test_success_goes_on_to_where_the_answer_leads_and_is_told_there(page: Page, show: Show) -> None:
    more = ' data-then="/elsewhere/{id}" data-done="Waits." data-done201="Made {id}."'
    api = show(ONE.replace("{more}", more))
    api.status, api.answer = 201, {"id": "run_1"}
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(f"{HOME}/elsewhere/run_1")
    expect(page.locator("#message")).to_have_text("Made run_1.")


def test_success_asks_the_page_to_refresh_itself(page: Page, show: Show) -> None:
    show(ONE.replace("{more}", ' data-done="It is so."'))
    page.evaluate("() => document.addEventListener('page:refresh', () => { window.refreshed = true; })")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#message")).to_have_text("It is so.")
    assert page.evaluate("window.refreshed") is True


def test_a_secret_is_shown_once_can_be_copied_and_is_gone(page: Page, show: Show) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    api = show(ONE.replace("{more}", ' data-shows="key" data-shows-name="The key"'))
    api.status, api.answer = 201, {"id": "key_1", "key": "key_1.secret"}
    page.get_by_role("button", name="Send").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("shown only once")
    expect(dialog.get_by_label("The key")).to_have_value("key_1.secret")
    page.keyboard.press("Escape")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Copy").click()
    expect(dialog.get_by_role("status")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == "key_1.secret"
    dialog.get_by_role("button", name="I have saved it").click()
    expect(dialog).to_have_count(0)
    assert "key_1.secret" not in page.content()
    assert "idempotency-key" not in api.sent[0]["headers"]  # a reply with a secret is kept nowhere


def test_a_call_for_a_secret_that_failed_is_not_said_to_be_safe_to_repeat(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ' data-shows="key"'))
    api.broken = True
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("Check whether it exists before you repeat it")


def test_a_button_can_stand_for_another_call_than_its_form(page: Page, show: Show) -> None:
    api = show(
        '<form data-call="POST /v1/p/{id}/approve"><input type="hidden" name="id" value="prp_1">'
        "<button>Approve</button>"
        '<button data-call="POST /v1/p/{id}/reject" data-done="Rejected.">Reject</button></form>'
    )
    page.get_by_role("button", name="Reject").click()
    expect(page.locator("#message")).to_have_text("Rejected.")
    assert api.sent[0]["url"].endswith("/v1/p/prp_1/reject")
    assert api.sent[0]["body"] is None
