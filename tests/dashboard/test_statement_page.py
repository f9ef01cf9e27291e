"""A statement in a real browser: what it holds can be saved, it leads back, and a lawyer's part is one page."""

import json
import re

import pytest
from playwright.sync_api import expect

from app.service.signing.ed25519 import is_signed_by
from tests.conftest import LiveServer, signing_key
from tests.dashboard.conftest import Enter
from tests.dashboard.sample_hospital import Hospital

A4_HEIGHT = 1122 - 2 * 57
"""Pixels of a page between margins of 15 mm."""


def test_signed_document_and_script_are_saved_from_the_page(enter: Enter, hospital: Hospital) -> None:
    page = enter("admin", f"/v1/runs/{hospital.refused}/statement.html")
    with page.expect_download() as begun:
        page.get_by_role("link", name="statement.json").click()
    document = json.loads(begun.value.path().read_text())
    assert begun.value.suggested_filename == "statement.json"
    assert is_signed_by(document, signing_key()[1].read_bytes())
    assert document["payload"]["run"]["id"] == hospital.refused
    with page.expect_download() as begun:
        page.get_by_role("link", name="verify_statement.sh").click()
    assert begun.value.path().read_text().startswith("#!/bin/sh\n")
    page.get_by_role("link", name="Go to its page in the ledger").click()
    expect(page).to_have_url(re.compile(f"/runs/{hospital.refused}$"))


@pytest.mark.parametrize("kind", ["runs", "populations"])
def test_lawyer_s_part_is_printed_on_one_page(enter: Enter, server: LiveServer, kind: str) -> None:
    with server.client("admin") as api:
        found = api.get(f"/v1/{kind}", params={"limit": 3}).json()["items"]
    for each in found:
        page = enter("admin", f"/v1/{kind}/{each['id']}/statement.html", viewport={"width": 680, "height": 900})
        page.emulate_media(media="print")
        assert page.evaluate("document.querySelector('section').offsetHeight") <= A4_HEIGHT, each["path"]
        assert page.evaluate("document.querySelectorAll('section')[1].textContent").startswith("\nAnnex for engineers")
