"""The constraints restate the invariants: SQL itself refuses every row that breaks one."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

import pytest
from sqlalchemy import CheckConstraint, Column, ForeignKeyConstraint, Table, delete, insert, null, select, update
from sqlalchemy.exc import IntegrityError

from app.accounting.events import Gaussian
from app.ledger.ids import is_id
from app.ledger.reservations import forfeit
from app.ledger.step_events import StepEvent
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import usage_history
from app.persistence.tables import metadata
from app.persistence.tables.base import NumberedId
from app.service.governance.first_admin import create_sign_in_link
from tests.conftest import Ledger, open_ledger
from tests.ledgers import schedule_blocks
from tests.login_helpers import cookie_for
from tests.persistence.dump import dump
from tests.service.reservation_rows import NOW, Reserver

NOTHING = b""
SHA = "0" * 64
TWO_EVENTS = [
    {"event": {"type": "gaussian", "noise_multiplier": 90.0}, "count": 2},
    {"event": {"type": "gaussian", "noise_multiplier": 70.0}, "count": 1},
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Database]:
    """Two organisations; in the first a tree with a run that was admitted twice and refused once, and one with a block.

    Another run forfeited a reservation, and has an active one.
    """
    with open_ledger(tmp_path_factory.mktemp("constraints"), module_database_url) as ledger:
        ledger.population(size=1000)
        ledger.budget(labels={"team": "icu"})
        ledger.population("cohort", composition="parallel", attestation="by month")
        block = {"data_from": "2026-05-01T00:00:00Z", "data_to": "2026-06-01T00:00:00Z"}
        ledger.budget("may", "cohort", block=block)
        assert schedule_blocks(ledger, "cohort").status_code == 200
        sweep = {"name": "sweep", "budget": "mimic/icu-team", "charging_mode": "each_run"}
        assert ledger.post("/v1/experiments", sweep).status_code == 201
        run = ledger.run()
        answers = [
            ledger.post(f"/v1/runs/{run}/steps", body, Idempotency_Key=f"key-{number}").status_code
            for number, body in enumerate([{"count": 2}, {"events": TWO_EVENTS}, {"count": 10**6}])
        ]
        assert answers == [200, 200, 403]
        reply = ledger.post("/v1/runs", {"name": "other", "budget": "mimic/icu-team"}, Idempotency_Key="run")
        assert reply.status_code == 201
        budget = ledger.get("/v1/budgets").json()["items"][0]["id"]
        change = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "More patients."}
        assert ledger.post(f"/v1/accounts/{budget}/limit", change, If_Match="*").status_code == 201
        assert ledger.post("/v1/checkpoints", None).status_code == 201
        assert ledger.post("/v1/verifications", None).status_code == 201
        cookie_for(ledger)
        create_sign_in_link(ledger.database, "hospital", ledger.database.clock.now())
        trainer = Reserver(ledger.database, reply.json()["id"])
        plan = (StepEvent(Gaussian(90.0), 3), StepEvent(Gaussian(80.0), 1))
        trainer.close(forfeit(trainer.reserve(*plan)))
        trainer.reserve(*plan)
        ledger.budget("later", "mimic", opens_at=LATER.isoformat())
        waits = {"name": "waits", "budget": "mimic/later", "plan": TWO_EVENTS[:1], "wait_until": NEXT_WEEK.isoformat()}
        assert ledger.post("/v1/runs", waits).json()["status"] == "waiting"
        _have_alerts(ledger)
        yield ledger.database


def _have_alerts(ledger: Ledger) -> None:
    """A receiver whose secret was rotated, a delivery to it, a threshold that was told before, a reading."""
    made = ledger.post("/v1/receivers", {"url": "https://alerts.example/a", "account": "mimic/icu-team"})
    for audit_event in ("rotate", "test"):
        assert ledger.post(f"/v1/receivers/{made.json()['id']}/{audit_event}", None).status_code == 201
    assert ledger.get("/v1/alerts?type=account.threshold_reached").json()["items"]
    with ledger.database.write(ALL_TENANTS) as tx:
        accounts = metadata.tables["accounts"]
        account = tx.execute(select(accounts).where(accounts.c.name == "mimic")).one()
        usage_history.put(tx, account.organisation_id, account.id, usage_history.Reading(0.5, datetime.now(UTC)))


# Each row: a table, which of its rows is copied (a column and its value), what is changed in the copy, and a part
# of the database's own words. Names such as `clinic` stand for the id of what has that name, others for one of nothing.
OPEN = ("status", "open")
NEXT_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
ACT = ("action", "budget.created")
KIND = ("kind", "budget")
POPULATION = ("kind", "population")
RUN = ("kind", "run")
OF_RUN = ("account_id", "model")
ADMITTED = ("position", 1)
REFUSED = ("position", 2)
FORFEITED = ("outcome", "forfeited")
RESERVED = ("status", "active")
ENDED = ("status", "forfeited")
WAITING = ("status", "waiting")
ITEM = ("reservation_id", "active one")
HOOK = ("url", "https://alerts.example/a")
NEVER_ROTATED: dict[str, object] = {"previous_secret": None, "previous_secret_expires_at": None}
TOLD = ("type", "account.threshold_reached")
TESTED = ("type", "receiver.test")
SENT = ("status", "pending")
READ = ("utilisation", 0.5)
CHARGED = ("position", 0)
SAID = ("attestation", "by month")
BLOCK = ("account_id", "may")
SCHEDULED = ("account_id", "cohort")
LABELLED = ("key", "team")
SWEEP = ("charging_mode", "each_run")
LATER = NOW + timedelta(days=1)
NEXT_WEEK = NOW + timedelta(days=7)
NO_ID = "a word that is no id"
SIGNED_IN = ("organisation_id", "hospital")
PERSON = {"role": "admin", "oidc_key_thumbprint": "t"}
COPIES: list[tuple[str, tuple[str, object], dict[str, object], str]] = [
    ("accounts", KIND, {"id": "a", "path": "x", "alert_thresholds": ""}, "ck_accounts_alert_thresholds_not_empty"),
    ("accounts", KIND, {"id": "a", "path": "x", "forecast_days": -1}, "ck_accounts_forecast_days_nonnegative"),
    ("receivers", HOOK, {}, "receivers.id"),
    ("receivers", HOOK, {"id": "w", "url": ""}, "ck_receivers_url_not_empty"),
    ("receivers", HOOK, {"id": "w", "secret": ""}, "ck_receivers_secret_not_empty"),
    ("receivers", HOOK, {"id": "w", "kind": "pager"}, "ck_receivers_kind_known"),
    ("receivers", HOOK, {"id": "w", "url": None}, "ck_receivers_url_unless_email"),
    ("receivers", HOOK, {"id": "w", "addresses": '["a@b.example"]'}, "ck_receivers_addresses_if_email"),
    ("receivers", HOOK, {"id": "w", "secret": None} | NEVER_ROTATED, "ck_receivers_secret_if_webhook"),
    ("receivers", HOOK, {"id": "w", "previous_secret_expires_at": None}, "ck_receivers_previous_secret_complete"),
    ("receivers", HOOK, {"id": "w", "disabled_reason": "why"}, "ck_receivers_disabled_complete"),
    ("receivers", HOOK, {"id": "w", "consecutive_failures": 1}, "ck_receivers_consecutive_failures_consistent"),
    (
        "receivers",
        HOOK,
        {"id": "w", "consecutive_failures": -1, "failing_since": NEXT_YEAR},
        "ck_receivers_consecutive_failures_consistent",
    ),
    ("receivers", HOOK, {"id": "w", "organisation_id": "org_nowhere", "account_id": None}, "FOREIGN KEY"),
    ("receivers", HOOK, {"id": "w", "account_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("alerts", TOLD, {"dedup_key": "x"}, "alerts.id"),
    ("alerts", TOLD, {"id": "e"}, "alerts.dedup_key"),
    ("alerts", TOLD, {"id": "e", "account_id": None}, "ck_alerts_account_unless_of_organisation"),
    ("alerts", TESTED, {"id": "e"}, "alerts.dedup_key"),
    ("alerts", TESTED, {"id": "e", "account_id": "icu-team"}, "ck_alerts_test_without_account"),
    ("alerts", TOLD, {"id": "e", "account_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("alerts", TOLD, {"id": "e", "organisation_id": "clinic"}, "FOREIGN KEY"),
    ("deliveries", SENT, {"receiver_id": "rcv_nowhere"}, "deliveries.id"),
    ("deliveries", SENT, {"id": "d"}, "deliveries.receiver_id"),
    ("deliveries", SENT, {"id": "d", "status": "lost"}, "ck_deliveries_status_known"),
    ("deliveries", SENT, {"id": "d", "status": "delivered"}, "ck_deliveries_delivered_at_if_delivered"),
    ("deliveries", SENT, {"id": "d", "attempts": -1}, "ck_deliveries_attempts_nonnegative"),
    ("deliveries", SENT, {"id": "d", "receiver_id": "rcv_nowhere"}, "FOREIGN KEY"),
    ("deliveries", SENT, {"id": "d", "alert_id": "evt_nowhere"}, "FOREIGN KEY"),
    ("account_usage_snapshots", READ, {}, "account_usage_snapshots.day"),
    ("account_usage_snapshots", READ, {"day": -1}, "ck_account_usage_snapshots_day_nonnegative"),
    (
        "account_usage_snapshots",
        READ,
        {"day": 1, "utilisation": -0.1},
        "ck_account_usage_snapshots_utilisation_nonnegative",
    ),
    ("account_usage_snapshots", READ, {"account_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("sessions", SIGNED_IN, {}, "sessions.id"),
    ("sessions", SIGNED_IN, {"organisation_id": "clinic"}, "sessions.id"),
    ("sessions", SIGNED_IN, {"id": "s", "organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    ("sessions", SIGNED_IN, {"id": "s", **PERSON, "scope_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("sessions", SIGNED_IN, {"id": "s", "secret_hash": b"x" * 31}, "ck_sessions_secret_hash_is_sha256"),
    ("sessions", SIGNED_IN, {"id": "s", "role": "admin"}, "ck_sessions_oidc_session_complete"),
    ("sessions", SIGNED_IN, {"id": "s", "oidc_key_thumbprint": "t"}, "ck_sessions_oidc_session_complete"),
    ("sessions", SIGNED_IN, {"id": "s", "scope_id": "mimic"}, "ck_sessions_scope_only_for_oidc"),
    (
        "sessions",
        SIGNED_IN,
        {"id": "s", "expires_at": datetime(2020, 1, 1, tzinfo=UTC)},
        "ck_sessions_expires_after_creation",
    ),
    ("sign_in_links", SIGNED_IN, {"organisation_id": "clinic"}, "sign_in_links.id"),
    ("sign_in_links", SIGNED_IN, {"id": "l"}, "sign_in_links.organisation_id"),
    ("sign_in_links", SIGNED_IN, {"id": "l", "organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    ("sign_in_links", SIGNED_IN, {"id": "l", "organisation_id": "clinic", "key_id": "k"}, "FOREIGN KEY"),
    ("sign_in_links", SIGNED_IN, {"id": "l", "secret_hash": b"x" * 31}, "ck_sign_in_links_secret_hash_is_sha256"),
    (
        "sign_in_links",
        SIGNED_IN,
        {"id": "l", "expires_at": datetime(2020, 1, 1, tzinfo=UTC)},
        "ck_sign_in_links_expires_after_creation",
    ),
    ("organisations", ("name", "hospital"), {"id": "org_2"}, "organisations.name"),
    ("organisations", ("name", "hospital"), {"name": "x"}, "organisations.id"),
    ("organisations", ("name", "hospital"), {"id": NO_ID, "name": "x"}, "ck_organisations_id_nonnegative"),
    ("organisations", ("name", "hospital"), {"id": "org_2", "name": ""}, "ck_organisations_name_not_empty"),
    (
        "organisations",
        ("name", "hospital"),
        {"id": "org_2", "name": "x", "policy_revision": -1},
        "ck_organisations_policy_revision_nonnegative",
    ),
    ("api_keys", ("role", "admin"), {"id": "k", "role": "owner"}, "ck_api_keys_role_known"),
    ("api_keys", ("role", "admin"), {"id": "k", "role": "Admin"}, "ck_api_keys_role_known"),
    ("api_keys", ("role", "admin"), {"id": "k", "secret_hash": b"x" * 31}, "ck_api_keys_secret_hash_is_sha256"),
    ("api_keys", ("role", "admin"), {"id": "k", "token_hash": b"x"}, "ck_api_keys_token_hash_is_sha256"),
    ("api_keys", ("role", "admin"), {"id": "k", "single_use": True}, "ck_api_keys_single_use_complete"),
    ("api_keys", ("role", "admin"), {"organisation_id": "clinic"}, "api_keys.id"),
    ("api_keys", ("role", "admin"), {"id": "k", "organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    ("api_keys", ("role", "admin"), {"id": "k", "scope_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("audit_entries", ACT, {"action": "x"}, "audit_entries.position"),
    ("audit_entries", ACT, {"position": -1}, "ck_audit_entries_position_nonnegative"),
    ("audit_entries", ACT, {"position": 99, "entry_hash": b"x" * 31}, "ck_audit_entries_entry_hash_is_sha256"),
    ("audit_entries", ACT, {"organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    ("proposals", OPEN, {"id": "p"}, "proposals.kind"),
    ("proposals", OPEN, {"kind": "run"}, "proposals.id"),
    ("proposals", OPEN, {"id": "p", "kind": "wish"}, "ck_proposals_kind_known"),
    ("proposals", OPEN, {"id": "p", "kind": "run", "account_id": None}, "ck_proposals_account_required"),
    ("proposals", OPEN, {"id": "p", "status": "lost"}, "ck_proposals_status_known"),
    ("proposals", OPEN, {"id": "p", "status": "approved"}, "ck_proposals_decided_by_unless_open"),
    ("proposals", OPEN, {"id": "p", "kind": "run", "decided_at": NEXT_YEAR}, "ck_proposals_decision_complete"),
    ("proposals", OPEN, {"id": "p", "kind": "run", "account_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("accounts", KIND, {"id": "a", "path": "x", "limit_revision": -1}, "ck_accounts_limit_revision_nonnegative"),
    ("accounts", KIND, {"id": "a", "path": "x", "policy_revision": -1}, "ck_accounts_policy_revision_nonnegative"),
    ("accounts", KIND, {"id": "a", "path": "x", "allocation_revision": -1}, "allocation_revision_nonnegative"),
    ("accounts", RUN, {"id": "a", "path": "x", "allocation": "{}"}, "ck_accounts_allocation_not_on_runs"),
    ("accounts", ("kind", "run"), {"id": "a", "policy": "{}"}, "ck_accounts_policy_not_on_runs"),
    (
        "accounts",
        ("kind", "run"),
        {"id": "a", "organisation_policy": "{}"},
        "ck_accounts_organisation_policy_only_on_populations",
    ),
    ("checkpoints", ("organisation_id", "hospital"), {}, "checkpoints.audit_length"),
    ("checkpoints", ("organisation_id", "hospital"), {"audit_length": 0}, "ck_checkpoints_audit_length_positive"),
    (
        "checkpoints",
        ("organisation_id", "hospital"),
        {"audit_length": 99, "audit_head": b"x" * 31},
        "ck_checkpoints_audit_head_is_sha256",
    ),
    ("checkpoints", ("organisation_id", "hospital"), {"organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    ("verifications", ("organisation_id", "hospital"), {}, "verifications.id"),
    (
        "verifications",
        ("organisation_id", "hospital"),
        {"id": "x", "discrepancy_count": -1},
        "discrepancy_count_nonnegative",
    ),
    ("verifications", ("organisation_id", "hospital"), {"organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    ("run_anchors", ("decision_count", 3), {}, "run_anchors.run_id"),
    ("run_anchors", ("decision_count", 3), {"decision_count": 0}, "ck_run_anchors_decision_count_positive"),
    ("run_anchors", ("decision_count", 3), {"run_id": "run_nowhere"}, "FOREIGN KEY"),
    ("accounts", KIND, {"id": "a", "name_skeleton": "x"}, "accounts.path"),
    ("accounts", KIND, {"id": "a", "path": "x"}, "accounts.name_skeleton"),
    ("accounts", POPULATION, {"id": "a", "path": "x", "population_id": "a"}, "accounts.name_skeleton"),
    ("accounts", KIND, {"id": "a", "path": "x", "name_skeleton": None}, "ck_accounts_name_skeleton_unless_run"),
    ("accounts", RUN, {"id": "a", "name_skeleton": "x"}, "ck_accounts_name_skeleton_unless_run"),
    ("accounts", POPULATION, {"id": "a", "population_id": "a", "name_skeleton": "x"}, "accounts.path"),
    ("accounts", KIND, {"path": "x", "name_skeleton": "x"}, "accounts.id"),
    ("accounts", KIND, {"id": NO_ID, "path": "x", "name_skeleton": "x"}, "ck_accounts_id_nonnegative"),
    ("accounts", KIND, {"id": "a", "path": "x", "kind": "pot"}, "ck_accounts_kind_known"),
    ("accounts", KIND, {"id": "a", "path": "x", "name": ""}, "ck_accounts_name_not_empty"),
    ("accounts", KIND, {"id": "a", "path": "x", "parent_id": None}, "ck_accounts_population_is_root"),
    ("accounts", KIND, {"id": "a", "path": "x", "depth": 0}, "ck_accounts_population_is_root"),
    ("accounts", KIND, {"id": "a", "path": "x", "depth": -1}, "ck_accounts_population_is_root"),
    ("accounts", POPULATION, {"id": "a", "path": "x", "population_id": "a", "depth": 1}, "population_is_root"),
    (
        "accounts",
        POPULATION,
        {"id": "a", "path": "x", "population_id": "a", "parent_id": "mimic"},
        "population_is_root",
    ),
    ("accounts", POPULATION, {"id": "a", "path": "x"}, "ck_accounts_population_refers_to_itself"),
    ("accounts", KIND, {"id": "a", "path": "x", "parent_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("accounts", KIND, {"id": "a", "path": "x", "name_skeleton": "x", "population_id": "pop_nowhere"}, "FOREIGN KEY"),
    ("accounts", KIND, {"id": "a", "organisation_id": "clinic"}, "FOREIGN KEY"),
    ("accounts", KIND, {"id": "a", "organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    (
        "accounts",
        KIND,
        {"id": "a", "path": "x", "epsilon_limit": None, "delta_limit": None},
        "limit_required_unless_run",
    ),
    ("accounts", KIND, {"id": "a", "path": "x", "epsilon_limit": float("nan")}, "ck_accounts_limit_"),
    ("accounts", KIND, {"id": "a", "path": "x", "delta_limit": None}, "ck_accounts_limit_complete"),
    ("accounts", RUN, {"id": "a", "delta_limit": 1e-5}, "ck_accounts_limit_complete"),
    ("accounts", RUN, {"id": "a", "epsilon_limit": 1.0}, "ck_accounts_limit_complete"),
    ("accounts", KIND, {"id": "a", "path": "x", "epsilon_limit": 0.0}, "ck_accounts_limit_in_range"),
    ("accounts", KIND, {"id": "a", "path": "x", "epsilon_limit": -1.0}, "ck_accounts_limit_in_range"),
    ("accounts", KIND, {"id": "a", "path": "x", "epsilon_limit": float("inf")}, "ck_accounts_limit_in_range"),
    ("accounts", KIND, {"id": "a", "path": "x", "delta_limit": 0.0}, "ck_accounts_limit_in_range"),
    ("accounts", KIND, {"id": "a", "path": "x", "delta_limit": 0.5}, "ck_accounts_limit_in_range"),
    ("accounts", RUN, {"id": "a", "filter_weights": "{}"}, "ck_accounts_filter_weights_only_with_limit"),
    (
        "balances",
        OF_RUN,
        {"account_id": "x", "spent_curve": b"x" * 7, "held_curve": b"x" * 7},
        "ck_balances_curve_lengths",
    ),
    (
        "balances",
        OF_RUN,
        {"account_id": "x", "spent_curve": b"x" * 16, "held_curve": b"x" * 8},
        "ck_balances_curve_lengths",
    ),
    (
        "balances",
        OF_RUN,
        {"account_id": "x", "spent_curve": NOTHING, "held_curve": b"x" * 7},
        "ck_balances_curve_lengths",
    ),
    ("balances", OF_RUN, {"account_id": "x"}, "FOREIGN KEY"),
    ("accounts", KIND, {"id": "a", "path": "x", "quarantine_reason": ""}, "ck_accounts_quarantine_reason_not_empty"),
    ("accounts", KIND, {"id": "a", "path": "x", "version": -1}, "ck_accounts_version_nonnegative"),
    ("balances", OF_RUN, {"account_id": "x", "spent_delta": -1}, "ck_balances_spent_delta_nonnegative"),
    ("balances", OF_RUN, {"account_id": "x", "held_delta": -1}, "ck_balances_held_delta_nonnegative"),
    (
        "account_ancestors",
        ("depth", 1),
        {"depth": -1, "account_id": "icu-team"},
        "ck_account_ancestors_depth_nonnegative",
    ),
    ("account_ancestors", ("depth", 1), {"depth": 7}, "account_ancestors.ancestor_id"),
    (
        "accounts",
        KIND,
        {"id": "a", "path": "x", "max_partitions_per_unit": 0},
        "ck_accounts_max_partitions_per_unit_positive",
    ),
    ("accounts", RUN, {"id": "a", "max_partitions_per_unit": 1}, "ck_accounts_partitions_not_on_runs"),
    (
        "accounts",
        KIND,
        {"id": "a", "path": "x", "opens_at": LATER, "closes_at": NOW},
        "ck_accounts_window_order",
    ),
    ("run_budgets", CHARGED, {}, "run_budgets.run_id"),
    ("run_budgets", CHARGED, {"position": 1}, "run_budgets.budget_id"),
    ("run_budgets", CHARGED, {"position": -1, "budget_id": "mimic"}, "ck_run_budgets_position_nonnegative"),
    ("run_budgets", CHARGED, {"position": 1, "budget_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("run_budgets", CHARGED, {"run_id": "run_nowhere"}, "FOREIGN KEY"),
    ("run_budgets", CHARGED, {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("partition_attestations", SAID, {}, "partition_attestations.account_id"),
    (
        "partition_attestations",
        SAID,
        {"account_id": "mimic", "attestation": ""},
        "ck_partition_attestations_attestation_not_empty",
    ),
    (
        "partition_attestations",
        SAID,
        {"account_id": "mimic", "replacement_assumption": "go"},
        "ck_partition_attestations_replacement_assumption_known",
    ),
    ("partition_attestations", SAID, {"account_id": "pop_nowhere"}, "FOREIGN KEY"),
    ("partition_attestations", SAID, {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("account_metadata", OF_RUN, {}, "account_metadata.account_id"),
    ("account_metadata", OF_RUN, {"number": 0}, "ck_account_metadata_number_positive"),
    ("account_metadata", OF_RUN, {"display_name": ""}, "ck_account_metadata_display_name_not_empty"),
    ("account_metadata", OF_RUN, {"description": ""}, "ck_account_metadata_description_not_empty"),
    ("account_metadata", OF_RUN, {"owner": ""}, "ck_account_metadata_owner_not_empty"),
    ("account_metadata", OF_RUN, {"links": ""}, "ck_account_metadata_links_not_empty"),
    ("account_metadata", OF_RUN, {"search_text": ""}, "ck_account_metadata_search_text_not_empty"),
    ("account_metadata", OF_RUN, {"account_id": "run_nowhere"}, "FOREIGN KEY"),
    ("account_metadata", OF_RUN, {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("account_labels", LABELLED, {}, "account_labels.key"),
    ("account_labels", LABELLED, {"key": ""}, "ck_account_labels_key_not_empty"),
    ("account_labels", LABELLED, {"account_id": "run_nowhere"}, "FOREIGN KEY"),
    ("account_labels", LABELLED, {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("data_blocks", BLOCK, {}, "data_blocks.account_id"),
    (
        "data_blocks",
        BLOCK,
        {"account_id": "mimic", "data_from": LATER, "data_to": NOW},
        "ck_data_blocks_data_range_order",
    ),
    ("data_blocks", BLOCK, {"account_id": "mimic", "label": ""}, "ck_data_blocks_label_not_empty"),
    ("data_blocks", BLOCK, {"account_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("data_blocks", BLOCK, {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("block_schedules", SCHEDULED, {}, "block_schedules.account_id"),
    ("block_schedules", SCHEDULED, {"account_id": "mimic", "period": "day"}, "ck_block_schedules_period_known"),
    ("block_schedules", SCHEDULED, {"account_id": "mimic", "start": ""}, "ck_block_schedules_start_not_empty"),
    ("block_schedules", SCHEDULED, {"account_id": "mimic", "failure": ""}, "ck_block_schedules_failure_not_empty"),
    ("block_schedules", SCHEDULED, {"account_id": "mimic", "epsilon_limit": 0}, "ck_block_schedules_limit_in_range"),
    ("block_schedules", SCHEDULED, {"account_id": "mimic", "delta_limit": 0.5}, "ck_block_schedules_limit_in_range"),
    ("block_schedules", SCHEDULED, {"account_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("block_schedules", SCHEDULED, {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("experiments", SWEEP, {"account_id": "mimic"}, "experiments.id"),
    ("experiments", SWEEP, {"id": "e"}, "experiments.account_id"),
    (
        "experiments",
        SWEEP,
        {"id": "e", "account_id": "mimic", "charging_mode": "never"},
        "ck_experiments_charging_mode_known",
    ),
    ("experiments", SWEEP, {"id": "e", "account_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("experiments", SWEEP, {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("account_ancestors", ("depth", 1), {"ancestor_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("account_ancestors", ("depth", 1), {"depth": 7, "account_id": "bud_nowhere"}, "FOREIGN KEY"),
    ("account_ancestors", ("depth", 1), {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("populations", ("size", 1000), {}, "populations.account_id"),
    ("populations", ("size", 1000), {"account_id": "pop_nowhere"}, "FOREIGN KEY"),
    ("populations", ("size", 1000), {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("populations", ("size", 1000), {"account_id": "icu-team", "privacy_unit": ""}, "privacy_unit_not_empty"),
    (
        "populations",
        ("size", 1000),
        {"account_id": "icu-team", "neighboring_relation": "any"},
        "neighboring_relation_known",
    ),
    ("populations", ("size", 1000), {"account_id": "icu-team", "size": 0}, "ck_populations_size_positive"),
    ("dp_events", ("organisation_id", "hospital"), {"fingerprint": "0" * 62}, "fingerprint_is_sha256"),
    ("dp_events", ("organisation_id", "hospital"), {}, "dp_events.fingerprint"),
    ("dp_events", ("organisation_id", "hospital"), {"organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    ("event_costs", ("grid_version", 1), {}, "event_costs.grid_version"),
    ("event_costs", ("grid_version", 1), {"grid_version": 3, "curve": b"x" * 7}, "ck_event_costs_curve_length"),
    ("event_costs", ("grid_version", 1), {"grid_version": 3, "curve": NOTHING}, "ck_event_costs_curve_length"),
    (
        "event_costs",
        ("grid_version", 1),
        {"grid_version": 3, "curve_delta": -1},
        "ck_event_costs_curve_delta_nonnegative",
    ),
    ("event_costs", ("grid_version", 1), {"grid_version": 3, "formula_version": 0}, "formula_version_positive"),
    ("event_costs", ("grid_version", 1), {"neighboring_relation": "any"}, "ck_event_costs_neighboring_relation_known"),
    ("event_costs", ("grid_version", 1), {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("event_costs", ("grid_version", 1), {"event_fingerprint": SHA}, "FOREIGN KEY"),
    ("runs", ("account_id", "model"), {}, "runs.account_id"),
    ("runs", ("account_id", "model"), {"account_id": "run_nowhere"}, "FOREIGN KEY"),
    ("runs", ("account_id", "model"), {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("runs", ("account_id", "model"), {"account_id": "icu-team", "event_fingerprint": SHA}, "FOREIGN KEY"),
    ("runs", ("account_id", "model"), {"account_id": "icu-team", "status": "done"}, "ck_runs_status_known"),
    ("runs", ("account_id", "model"), {"account_id": "icu-team", "status": "aborted"}, "ck_runs_end_reason_if_ended"),
    (
        "runs",
        ("account_id", "model"),
        {"account_id": "icu-team", "status": "aborted", "end_reason": "lost"},
        "ck_runs_ended_at_if_ended",
    ),
    (
        "runs",
        ("account_id", "model"),
        {
            "account_id": "icu-team",
            "status": "aborted",
            "end_reason": "bored",
            "ended_at": datetime(2026, 11, 21, tzinfo=UTC),
        },
        "ck_runs_end_reason_known",
    ),
    (
        "runs",
        ("account_id", "model"),
        {"account_id": "icu-team", "status": "pending", "attempt": 2},
        "ck_runs_pending_not_started",
    ),
    (
        "runs",
        ("account_id", "model"),
        {"account_id": "icu-team", "expected_steps": 0},
        "ck_runs_expected_steps_positive",
    ),
    (
        "runs",
        ("account_id", "model"),
        {"account_id": "icu-team", "declared_steps_per_hour": 0.0},
        "ck_runs_declared_steps_per_hour_positive",
    ),
    ("runs", ("account_id", "model"), {"account_id": "icu-team", "attempt": 0}, "ck_runs_attempt_positive"),
    ("runs", ("account_id", "model"), {"account_id": "icu-team", "next_step": -1}, "ck_runs_next_step_nonnegative"),
    (
        "runs",
        ("account_id", "model"),
        {"account_id": "icu-team", "decision_count": -1},
        "ck_runs_decision_count_nonnegative",
    ),
    ("runs", ("account_id", "model"), {"account_id": "icu-team", "chain_head": b"x" * 31}, "chain_head_is_sha256"),
    ("runs", ("account_id", "model"), {"account_id": "icu-team", "reservation_id": "active one"}, "FOREIGN KEY"),
    ("attempts", ("run_id", "model"), {}, "attempts.attempt"),
    ("attempts", ("run_id", "model"), {"attempt": 0}, "ck_attempts_attempt_positive"),
    ("attempts", ("run_id", "model"), {"attempt": 2, "first_step": -1}, "ck_attempts_first_step_nonnegative"),
    ("attempts", ("run_id", "model"), {"run_id": "icu-team"}, "FOREIGN KEY"),
    ("attempts", ("run_id", "model"), {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("reservations", ENDED, {}, "reservations.id"),
    ("reservations", RESERVED, {"id": "res_2"}, "reservations.run_id"),
    ("reservations", RESERVED, {"id": "res_2", "run_id": "icu-team"}, "FOREIGN KEY"),
    ("reservations", ENDED, {"id": "res_2", "attempt": 2}, "FOREIGN KEY"),
    ("reservations", ENDED, {"id": "res_2", "organisation_id": "clinic"}, "FOREIGN KEY"),
    ("reservations", ENDED, {"id": "res_2", "status": "lost"}, "ck_reservations_status_known"),
    ("reservations", ENDED, {"id": "res_2", "closed_at": None}, "ck_reservations_closed_at_unless_waiting_or_active"),
    ("reservations", ENDED, {"id": "res_2", "status": "expired"}, "ck_reservations_wait_until_if_not_granted"),
    ("reservations", ENDED, {"id": "res_2", "granted_at": NEXT_YEAR}, "ck_reservations_granted_at_if_waited"),
    (
        "reservations",
        ENDED,
        {"id": "res_2", "wait_until": NEXT_YEAR, "claimed_at": NEXT_YEAR},
        "ck_reservations_claimed_at_if_granted",
    ),
    ("reservations", ENDED, {"id": "res_2", "priority": 101}, "ck_reservations_priority_in_range"),
    ("reservations", WAITING, {"id": "res_2"}, "reservations.run_id"),
    ("reservations", ENDED, {"id": "res_2", "steps_executed": 1}, "ck_reservations_steps_executed_if_committed"),
    ("reservations", ENDED, {"id": "res_2", "status": "committed"}, "ck_reservations_steps_executed_if_committed"),
    ("reservations", ENDED, {"id": "res_2", "status": "committed", "steps_executed": -1}, "steps_executed_nonnegative"),
    ("reservations", ENDED, {"id": "res_2", "reserved_curve": b"x" * 7}, "ck_reservations_curve_length"),
    ("reservations", ENDED, {"id": "res_2", "reserved_curve": NOTHING}, "ck_reservations_curve_length"),
    ("reservations", ENDED, {"id": "res_2", "reserved_delta": -1}, "ck_reservations_reserved_delta_nonnegative"),
    ("reservations", ENDED, {"id": "res_2", "lease_seconds": 0}, "ck_reservations_lease_seconds_positive"),
    ("reservation_items", ITEM, {}, "reservation_items."),
    ("reservation_items", ITEM, {"item": 2}, "reservation_items.event_fingerprint"),
    ("reservation_items", ITEM, {"item": -1, "reservation_id": "res_2"}, "ck_reservation_items_item_nonnegative"),
    ("reservation_items", ITEM, {"item": 2, "count": 0}, "ck_reservation_items_count_in_range"),
    ("reservation_items", ITEM, {"item": 2, "count": 1_000_000_001}, "ck_reservation_items_count_in_range"),
    ("reservation_items", ITEM, {"item": 2, "authorized_count": 4}, "ck_reservation_items_authorized_count_in_range"),
    ("reservation_items", ITEM, {"item": 2, "authorized_count": -1}, "ck_reservation_items_authorized_count_in_range"),
    ("reservation_items", ITEM, {"item": 2, "revoked_count": 4}, "ck_reservation_items_revoked_count_in_range"),
    ("reservation_items", ITEM, {"item": 2, "revoked_count": -1}, "ck_reservation_items_revoked_count_in_range"),
    ("reservation_items", ITEM, {"item": 2, "event_fingerprint": SHA}, "FOREIGN KEY"),
    ("reservation_items", ITEM, {"reservation_id": "res_2"}, "FOREIGN KEY"),
    ("reservation_items", ITEM, {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("decisions", FORFEITED, {"position": 9, "reservation_id": None}, "ck_decisions_outcome_consistent"),
    ("decisions", FORFEITED, {"position": 9, "idempotency_key": "k"}, "ck_decisions_outcome_consistent"),
    ("decisions", FORFEITED, {"position": 9, "refusal_details": "{}"}, "ck_decisions_outcome_consistent"),
    ("decisions", FORFEITED, {"position": 9, "steps_remaining": 1}, "ck_decisions_outcome_consistent"),
    ("decisions", FORFEITED, {"position": 9, "reservation_id": "res_2"}, "FOREIGN KEY"),
    ("decisions", FORFEITED, {"position": 9, "run_id": "model"}, "FOREIGN KEY"),
    ("decisions", REFUSED, {"idempotency_key": None}, "decisions.position"),
    ("decisions", REFUSED, {"position": 3}, "decisions.idempotency_key"),
    ("idempotent_responses", ("idempotency_key", "run"), {}, "idempotent_responses.idempotency_key"),
    (
        "idempotent_responses",
        ("idempotency_key", "run"),
        {"idempotency_key": "x", "request_fingerprint": ""},
        "is_sha256",
    ),
    ("idempotent_responses", ("idempotency_key", "run"), {"organisation_id": "org_nowhere"}, "FOREIGN KEY"),
    ("decision_ranges", ("first_position", 0), {}, "decision_ranges.first_position"),
    ("decision_ranges", ("first_position", 0), {"first_position": 9}, "FOREIGN KEY"),
    ("decision_ranges", ("first_position", 0), {"first_position": 1, "actor": None}, "decision_ranges.actor"),
    ("decision_ranges", ("first_position", 0), {"organisation_id": "clinic"}, "FOREIGN KEY"),
    ("decision_events", ADMITTED, {"item": 2, "count": 0}, "ck_decision_events_count_in_range"),
    ("decision_events", ADMITTED, {"item": 2, "count": 1_000_000_000_001}, "ck_decision_events_count_in_range"),
    ("decision_events", ADMITTED, {"item": 2, "repeats": None}, "decision_events.repeats"),
    ("decision_events", ADMITTED, {"item": 0}, "ck_decision_events_item_positive"),
    ("decision_events", ADMITTED, {}, "decision_events.item"),
    ("decision_events", ADMITTED, {"position": 9}, "FOREIGN KEY"),
    ("decision_events", ADMITTED, {"item": 2, "event_fingerprint": SHA}, "FOREIGN KEY"),
    ("decision_events", ADMITTED, {"organisation_id": "clinic"}, "FOREIGN KEY"),
]
# What a decision at place 3 may not be; steps 0 to 4 are admitted, so 5 is the next.
NEXT: dict[str, object] = {"position": 3, "idempotency_key": None, "first_step": 5}
LONGER: dict[str, object] = {"step_count": 4, "requested_count": 4}
MOST: dict[str, object] = {"step_count": 2 * 10**9, "requested_count": 2 * 10**9}
NO_DECISIONS: list[tuple[tuple[str, object], dict[str, object], str]] = [
    (ADMITTED, {"first_step": 2}, "decisions.first_step"),
    (ADMITTED, LONGER | {"first_step": 2}, "decisions.first_step"),
    (ADMITTED, {"first_step": 0}, "decisions.first_step"),
    (ADMITTED, {"event_count": 0}, "ck_decisions_event_count_in_range"),
    (ADMITTED, {"event_count": 4}, "ck_decisions_event_count_in_range"),
    (ADMITTED, MOST | {"event_count": 1_000_000_001}, "ck_decisions_event_count_in_range"),
    (ADMITTED, {"event_fingerprint": SHA}, "FOREIGN KEY"),
    (ADMITTED, {"requested_count": 2}, "ck_decisions_requested_count_at_least_step_count"),
    (ADMITTED, {"entry_hash": b"x" * 31}, "ck_decisions_entry_hash_is_sha256"),
    (ADMITTED, {"reservation_id": "active one"}, "FOREIGN KEY"),
    (ADMITTED, {"outcome": "reported", "refusal_details": "{}"}, "ck_decisions_outcome_consistent"),
    (ADMITTED, {"outcome": "forfeited", "reservation_id": "active one"}, "ck_decisions_outcome_consistent"),
    (ADMITTED, {"refusal_details": "{}"}, "ck_decisions_outcome_consistent"),
    (ADMITTED, {"steps_remaining": None}, "ck_decisions_outcome_consistent"),
    (ADMITTED, {"steps_remaining": -1}, "ck_decisions_steps_remaining_nonnegative"),
    (ADMITTED, {"outcome": "refused"}, "ck_decisions_outcome_consistent"),
    (ADMITTED, {"outcome": "maybe"}, "ck_decisions_outcome_consistent"),
    (REFUSED, {"refusal_details": None}, "ck_decisions_outcome_consistent"),
    (REFUSED, {"ended_plans": "[]"}, "ck_decisions_ended_plans_unless_refused"),
    (REFUSED, {"steps_remaining": 0}, "ck_decisions_outcome_consistent"),
    (REFUSED, {"outcome": "admitted"}, "ck_decisions_outcome_consistent"),
    (ADMITTED, {"position": -1}, "ck_decisions_counters_in_range"),
    (ADMITTED, {"attempt": 0}, "ck_decisions_counters_in_range"),
    (ADMITTED, {"attempt": 2}, "FOREIGN KEY"),
    (ADMITTED, {"step_count": 0}, "ck_decisions_counters_in_range"),
    (ADMITTED, {"first_step": -3}, "ck_decisions_counters_in_range"),
    (ADMITTED, {"epsilon": -0.1}, "ck_decisions_reading_in_range"),
    (ADMITTED, {"epsilon": float("nan")}, "decisions.epsilon"),
    (ADMITTED, {"delta": 0.0}, "ck_decisions_reading_in_range"),
    (ADMITTED, {"epsilon_limit": 0.0}, "ck_decisions_reading_in_range"),
    (ADMITTED, {"request_fingerprint": "00"}, "ck_decisions_request_fingerprint_is_sha256"),
    (ADMITTED, {"binding_account_id": "bud_nowhere"}, "FOREIGN KEY"),
    (ADMITTED, {"run_id": "run_nowhere"}, "FOREIGN KEY"),
    (ADMITTED, {"run_id": "icu-team"}, "FOREIGN KEY"),
    (ADMITTED, {"organisation_id": "clinic"}, "FOREIGN KEY"),
]
COPIES += [("decisions", row, NEXT | changes, words) for row, changes, words in NO_DECISIONS]


def _ids(database: Database) -> dict[str, object]:
    """The ids by name."""
    found: dict[str, object] = {}
    with database.read(ALL_TENANTS) as tx:
        for table in ("organisations", "accounts"):
            found |= {row.name: row.id for row in tx.execute(select(metadata.tables[table]))}
        reservations = metadata.tables["reservations"]
        active = select(reservations.c.id).where(reservations.c.status == "active")
        found["active one"] = tx.execute(active).scalar_one()
    return found


def _copy(
    database: Database, table: Table, where: tuple[str, object], changes: dict[str, object], ids: dict[str, object]
) -> dict[str, Any]:
    column, value = where
    sought = value if column == "name" else ids.get(str(value), value)
    with database.read(ALL_TENANTS) as tx:
        rows = tx.execute(select(table).where(table.c[column] == sought).order_by(*table.primary_key)).mappings()
        row = dict(next(iter(rows)))
    named = {key: ids.get(new, new) if isinstance(new, str) else new for key, new in changes.items()}
    return row | {key: _written(table.c[key], new) for key, new in named.items()}


def _written(column: Column[Any], value: object) -> object:
    """The value; for a word that stands for an id, and is that of nothing, a well-formed id, always the same."""
    if not isinstance(column.type, NumberedId) or not isinstance(value, str) or value == NO_ID or is_id(value):
        return value
    return f"bud_{crc32(value.encode()):015x}"


@pytest.mark.parametrize("table", sorted({table for table, *_ in COPIES}))
def test_sql_refuses_a_row_that_breaks_an_invariant(database: Database, table: str) -> None:
    before, ids = dump(database), _ids(database)
    for where, changes, words in [case[1:] for case in COPIES if case[0] == table]:
        row = _copy(database, metadata.tables[table], where, changes, ids)
        if database.dialect == "postgresql" and row.get("epsilon") != row.get("epsilon"):
            continue  # to PostgreSQL, NaN is a number above all others
        with pytest.raises(IntegrityError) as refused, database.write(ALL_TENANTS) as tx:
            tx.execute(insert(metadata.tables[table]).values(row))
        if database.dialect == "sqlite":  # PostgreSQL names them too, but another one where a row breaks several
            assert words in str(refused.value.orig)
    assert dump(database) == before


class _UndoneError(Exception):
    """Nothing of a transaction is to stay."""


def test_the_decision_from_which_the_table_starts_is_sound(database: Database) -> None:
    row = _copy(database, metadata.tables["decisions"], ADMITTED, NEXT, _ids(database))
    before = dump(database)
    with suppress(_UndoneError), database.write(ALL_TENANTS) as tx:
        tx.execute(insert(metadata.tables["decisions"]).values(row))
        raise _UndoneError
    assert dump(database) == before


@pytest.mark.parametrize(
    "table", ["organisations", "accounts", "dp_events", "runs", "attempts", "reservations", "decisions"]
)
def test_sql_refuses_to_forget_what_others_refer_to(database: Database, table: str) -> None:
    before = dump(database)
    with pytest.raises(IntegrityError), database.write(ALL_TENANTS) as tx:
        tx.execute(delete(metadata.tables[table]))
    assert dump(database) == before


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=str)
def test_sql_refuses_a_null_where_there_must_be_a_value(database: Database, table: Table) -> None:
    for column in table.columns:
        if not column.nullable:
            with pytest.raises(IntegrityError), database.write(ALL_TENANTS) as tx:
                tx.execute(update(table).values({column.name: null()}))


def test_every_check_was_broken_by_a_row_of_the_table() -> None:
    words = " ".join(words for *_, words in COPIES)
    for table in metadata.sorted_tables:
        for constraint in table.constraints:
            if isinstance(constraint, CheckConstraint):
                name = str(constraint.name)
                assert name in words or name.removeprefix(f"ck_{table.name}_") in words, name
        keys = {tuple(key.column_keys) for key in table.constraints if isinstance(key, ForeignKeyConstraint)}
        tried = sum(1 for name, _, __, words in COPIES if (name, words) == (table.name, "FOREIGN KEY"))
        assert tried >= len(keys), table.name
