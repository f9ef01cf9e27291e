"""`static/api_forms.js`: what changes something is asked for, sent once as JSON, and told."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from app.dashboard.assets import asset
from tests.dashboard.conftest import watched_page

HOME = "http://localhost:9"
"""Where nothing answers; a browser takes it for a place as safe as one with TLS."""

HEAD = """<!doctype html><html lang="en"><head><title>Try</title><meta name="csrf-token" content="its-token">
<script type="module" src="/api_forms.js"></script></head><body>
<main id="page" tabindex="-1"><section data-live id="s"></section>"""
TAIL = '</main><p id="message" role="status" aria-live="polite"></p></body></html>'

KINDS = """<form data-call="PUT /v1/accounts/{account}/policy" data-with="policy extra" data-if-match='"acc-policy-3"'>
<input type="hidden" name="account" value="a/b"><input name="policy.max_delta" data-type="number">
<input name="policy.limit.epsilon" type="number" step="any" data-type="number" value="1.5">
<input type="checkbox" name="policy.require_plan" checked>
<select name="policy.two" data-type="boolean"><option value="true">yes</option></select>
<input type="checkbox" name="policy.mechanisms" value="gaussian" data-type="list" checked>
<input type="checkbox" name="policy.mechanisms" value="laplace" data-type="list" checked>
<input type="checkbox" name="policy.roles" value="x" data-type="list">
<input name="thresholds" data-type="list" data-item="number" value="0.5, 0.9">
<input name="none" data-type="list" data-keep value=""><input name="owner" data-null value="">
<textarea name="event" data-type="json">{"type": "gaussian"}</textarea>
<input name="ends" type="datetime-local" data-type="moment" value="2027-01-01T00:00">
<input name="from" type="date" data-type="day" value="2026-04-01">
<input name="over" data-type="days" value="1.5"><input name="aging" data-type="days" data-null value="">
<textarea name="labels" data-type="labels">old: 1\nteam: icu</textarea>
<textarea name="links" data-type="links">A b https://x.example/1</textarea>
<input name="reason" value="Because.">"""
SENT = {
    "policy": {"limit": {"epsilon": 1.5}, "require_plan": True, "two": True, "mechanisms": ["gaussian", "laplace"]},
    "extra": {},
    "thresholds": [0.5, 0.9],
    "none": [],
    "owner": None,
    "event": {"type": "gaussian"},
    "ends": "2027-01-01T00:00:00.000Z",
    "from": "2026-04-01T00:00:00Z",
    "over": 129_600,
    "aging": None,
    "labels": {"old": None, "team": "a:b"},
    "links": [{"title": "A b", "url": "https://x.example/1"}],
    "reason": "Because.",
}
"""What becomes of them, once the labels are `team: a:b`."""

PARTS = """<select id="unlock"><option value="">at once</option><option value="slowly">slowly</option></select>
<fieldset data-when="unlock=slowly" hidden disabled><label>Days <input name="unlock.days" value="7"></label></fieldset>
<div data-unless-empty><input type="hidden" name="shares.0.account" value="a">
<label>A <input name="shares.0.minimum" data-type="percent"></label></div>
<div data-unless-empty><input type="hidden" name="shares.1.account" value="b">
<label>B <input name="shares.1.minimum" data-type="percent"></label></div>"""

ONE = """<form data-call="POST /v1/runs"{more}><label>Name <input name="limit.name" value="n"></label>
<button>Send</button></form>"""


@dataclass
class Api:
    """What the page's server answers, or hangs up instead, or holds back if it is to, and what it was sent."""

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
        script = asset("api_forms.js").content
        page.route("**/api_forms.js", lambda route: route.fulfill(content_type="text/javascript", body=script))
        whole = HEAD + form + TAIL
        for path in ("/try", "/elsewhere/**", "/sign-in*"):
            page.route(HOME + path, lambda route: route.fulfill(content_type="text/html", body=whole))
        page.goto(f"{HOME}/try")
        return api

    return show


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose calls may fail."""
    with watched_page(browser, fails=True) as page:
        yield page


def test_fields_become_json_of_their_kinds(page: Page, show: Show) -> None:
    api = show(f"{KINDS}{PARTS}<button>Save</button></form>")
    page.locator("[name=labels]").fill("team: a:b")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#message")).to_have_text("Done.")
    [sent] = api.sent
    assert (sent["method"], sent["url"]) == ("PUT", f"{HOME}/v1/accounts/a%2Fb/policy")
    assert sent["body"] == SENT
    headers = {name: sent["headers"][name] for name in ("x-csrf-token", "if-match", "content-type")}
    assert headers == {"x-csrf-token": "its-token", "if-match": '"acc-policy-3"', "content-type": "application/json"}
    page.get_by_label("B", exact=True).fill("33.3")
    page.locator("#unlock").select_option("slowly")
    with page.expect_response("**/v1/**"):
        page.get_by_role("button", name="Save").click()
    assert api.sent[1]["body"]["unlock"] == {"days": "7"}
    assert api.sent[1]["body"]["shares"] == [{"account": "b", "minimum": 0.333}]


def test_malformed_field_is_named_and_nothing_is_sent(page: Page, show: Show) -> None:
    api = show("")
    for wrong, words in (
        ('<textarea name="x" data-type="json">{</textarea>', "this is not JSON"),
        ('<input name="x" data-type="list" data-item="number" value="1, a">', "“a” is not a number"),
        ('<input name="x" data-type="links" value="alone">', "write a title and an address: “alone”"),
    ):
        form = f'<form data-call="POST /v1/runs"><label>Field {wrong}</label><button>Send</button></form>'
        page.evaluate("form => { document.getElementById('s').innerHTML = form; }", form)
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_label("Field")).to_have_accessible_description(words)
    assert api.sent == []


def test_two_clicks_send_one_call_and_button_says_so_meanwhile(page: Page, show: Show) -> None:
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


def test_question_is_filled_in_takes_a_reason_and_is_left_by_escape(page: Page, show: Show) -> None:
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


def test_ended_session_leads_to_sign_in_and_back(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ""))
    api.status = 401
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(f"{HOME}/sign-in?next=%2Ftry")


def test_success_opens_the_next_page_with_a_message(page: Page, show: Show) -> None:
    more = ' data-then="/elsewhere/{id}" data-done="Waits." data-done201="Made {id}."'
    api = show(ONE.replace("{more}", more))
    api.status, api.answer = 201, {"id": "run_1"}
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(f"{HOME}/elsewhere/run_1")
    expect(page.locator("#message")).to_have_text("Made run_1.")


def test_secret_is_shown_once_is_copied_and_removed(page: Page, show: Show) -> None:
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


def test_button_sends_its_own_call(page: Page, show: Show) -> None:
    api = show(
        '<form data-call="POST /v1/p/{id}/approve"><input type="hidden" name="id" value="prp_1">'
        "<button>Approve</button>"
        '<button data-call="POST /v1/p/{id}/reject" data-done="Rejected.">Reject</button></form>'
    )
    page.get_by_role("button", name="Reject").click()
    expect(page.locator("#message")).to_have_text("Rejected.")
    assert api.sent[0]["url"].endswith("/v1/p/prp_1/reject")
    assert api.sent[0]["body"] is None


def test_unknown_outcome_is_repeated_under_the_same_key(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ' data-done="It is so."'))
    page.evaluate("() => document.addEventListener('page:refresh', () => { window.refreshed = true; })")
    send, failed = page.get_by_role("button", name="Send"), page.get_by_role("alert")
    api.broken = True
    send.click()
    expect(failed).to_contain_text("It is safe to repeat")
    api.broken, api.status = False, 503
    send.click()
    expect(failed).to_contain_text("503")
    api.status = 201
    send.click()
    expect(page.locator("#message")).to_have_text("It is so.")
    expect(failed).to_have_count(0)
    assert page.evaluate("window.refreshed") is True
    for name in ("n", "another"):
        page.get_by_label("Name").fill(name)
        with page.expect_response("**/v1/**"):
            send.click()
        expect(send).to_be_enabled()
    first, second, third, fourth, fifth = api.keys
    assert first == second == third
    assert len({first, fourth, fifth}) == 3, "what was answered, or is another request, has another key"


def test_failed_call_for_a_secret_is_not_called_safe_to_repeat(page: Page, show: Show) -> None:
    api = show(ONE.replace("{more}", ' data-shows="key"'))
    api.broken = True
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("Check whether it exists before you repeat it")


PROBLEMS: tuple[tuple[int, dict[str, Any], str, str, str], ...] = (
    (422, {"detail": "It is.", "errors": [{"field": "limit", "message": "is odd"}]}, "Name", "is odd", ""),
    (403, {"detail": "Too much.", "rule": "max_epsilon"}, "Epsilon", "Too much.", ""),
    (403, {"detail": "Not there.", "field": "limit.epsilon"}, "Epsilon", "Not there.", ""),
    (409, {"detail": "The name is taken.", "code": "name_taken"}, "", "", "The name is taken."),
    (412, {"detail": "Changed."}, "", "", "Changed. Reload the page to see the current state."),
)
"""Status and content, the field at which it is shown, what is shown there, and what elsewhere."""


def test_problem_is_shown_at_its_field(page: Page, show: Show) -> None:
    form = ONE.replace("</label>", '</label><label>Epsilon <input name="limit.epsilon"></label>')
    api = show(form.replace("{more}", ' data-confirm="Sure?" data-yes="Yes"'))
    both = [{"field": "body.limit.name", "message": "must be shorter"}, {"field": "body", "message": "is odd"}]
    several = (422, {"detail": "Both.", "errors": both}, "Name", "must be shorter", "body: is odd")
    for status, answer, label, at_field, elsewhere in (several, *PROBLEMS):
        api.status, api.answer = status, answer
        page.get_by_role("button", name="Send").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Yes").click()
        if elsewhere:
            expect((page if label else dialog).get_by_role("alert")).to_have_text(elsewhere)
        if label:
            expect(dialog).to_have_count(0)
            expect(page.get_by_label(label)).to_be_focused()
            expect(page.get_by_label(label)).to_have_accessible_description(at_field)
        else:
            page.keyboard.press("Escape")
        assert page.locator("[aria-invalid=true]").count() == bool(label), "what was wrong before is so no more"
