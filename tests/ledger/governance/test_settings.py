"""Declared settings: what a declaration names exists, and what it writes can be read back."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.filter.limits import Limit
from app.ledger.governance.proposals import ProposalKind
from app.ledger.governance.settings import ALERT_SETTINGS, ALLOCATION, BLOCK_SCHEDULE, LIMIT, POLICY, Setting
from app.ledger.settings.allocation import Allocation, Share, UnlockByReservations, UnlockOverTime
from app.ledger.settings.policies import EMPTY_POLICY
from app.ledger.settings.policy_rules import Policy

START = datetime(2100, 1, 1, tzinfo=UTC)
VALUES: list[tuple[Setting[Any], Any]] = [
    (LIMIT, Limit(1.0, 1e-5)),
    (POLICY, EMPTY_POLICY),
    (POLICY, Policy(max_epsilon=1.0, require_limit=True, mechanisms=frozenset({"gaussian", "laplace"}))),
    (ALLOCATION, None),
    (ALLOCATION, Allocation(unlock=UnlockOverTime(START, timedelta(days=4), 4), shares={"bud_1": Share(0.5)})),
    (ALLOCATION, Allocation(aging_seconds=None, unlock=UnlockByReservations(START, 10))),
]


@pytest.mark.parametrize(("setting", "value"), VALUES)
def test_payload_is_read_back_and_replayed(setting: Setting[Any], value: object) -> None:
    payload = setting.payload(value, 3)
    assert payload is not None
    assert setting.from_json is not None
    assert setting.from_json(payload[setting.name]) == value
    assert setting.recorded(payload) == (setting.text(value), 3)


@pytest.mark.parametrize("setting", [LIMIT, POLICY, ALLOCATION, ALERT_SETTINGS, BLOCK_SCHEDULE])
def test_declared_names_exist(setting: Setting[Any]) -> None:
    assert all(setting.action_at(kind) for kind in AccountKind)
    names = {each.name for each in fields(Account)}
    assert (setting.revision_name in names) == setting.has_revision
    assert (setting.name in {*ProposalKind}) == (setting.is_looser is not None) == (setting.from_json is not None)
