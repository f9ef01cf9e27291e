"""`epsilon-ledger apply` and `export-config` against a real application in this process."""

import io
import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from app.provisioning.http_api import HttpApi
from tests.docs.markdown import ROOT
from tests.provisioning.organisation import Organisation, budget, population
from tests.service.cli_runner import Run, Said, commands

EXAMPLE = (ROOT / "examples" / "organisation.yaml").read_text()


@dataclass
class Shell:
    """A person with a file and a key of a role, in an organisation of an application in this process."""

    organisation: Organisation
    run: Run
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def use(self, role: str) -> None:
        self.monkeypatch.setenv("EPSILON_LEDGER_API_KEY", self.organisation.key(role))

    def write(self, text: str | dict[str, Any]) -> Path:
        file = self.folder / "organisation.yaml"
        file.write_text(text if isinstance(text, str) else yaml.safe_dump({"version": 1} | text, sort_keys=False))
        return file

    def apply(self, text: str | dict[str, Any], *options: str) -> Said:
        return self.run("apply", "-f", str(self.write(text)), *options)

    def done(self, text: str | dict[str, Any], *options: str) -> str:
        said = self.apply(text, "--yes", *options)
        assert said.status == 0, said
        return said.out

    def export(self) -> str:
        said = self.run("export-config")
        assert said.status == 0, said
        return said.out

    def get(self, path: str, role: str = "admin") -> Any:  # noqa: ANN401 - JSON is anything
        return self.organisation.api(role).get(path)[0]


@pytest.fixture
def shell(
    organisation: Organisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    def from_environment() -> HttpApi:
        return organisation.api(key=os.environ["EPSILON_LEDGER_API_KEY"])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(HttpApi, "from_environment", from_environment)
    shell = Shell(organisation, commands(monkeypatch, capsys, "sqlite://"), tmp_path, monkeypatch)
    shell.use("admin")
    return shell


def _say(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Sit at a terminal, and type."""
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)


def test_example_is_planned_applied_and_then_complete(shell: Shell) -> None:
    empty = shell.export()
    planned = shell.apply(EXAMPLE, "--dry-run")
    assert planned.status == 0
    for made in ("population mimic", "budget mimic/icu-team/sepsis", "API key grafana"):
        assert f"  + {made}\n" in planned.out
    assert "  ~ policy of the organisation\n" in planned.out
    assert planned.out.endswith("Plan: 12 to create, 1 to update.\n")
    assert shell.export() == empty
    assert shell.apply(EXAMPLE, "--check").status == 1

    applied = shell.done(EXAMPLE, "--keys-out", "keys.jsonl", "--reason", "The board of 12 November.")
    assert applied.endswith("\nApplied 13 of 13 changes.\n")
    said = shell.apply(EXAMPLE, "--check")
    assert (said.status, said.out.splitlines()[-1]) == (0, "No changes: the server is as the file describes.")
    assert shell.done(EXAMPLE).endswith("No changes: the server is as the file describes.\n")

    budgets = {each["path"]: each for each in shell.get("budgets")["items"]}
    assert budgets["mimic/icu-team/sepsis"]["closes_at"] == "2030-01-01T00:00:00Z"
    assert budgets["mimic/icu-team"]["plan"]["state"] == "active"
    policy = shell.get(f"accounts/{budgets['mimic/genomics']['id']}/policy")
    assert policy["effective"]["mechanisms"] == ["adaptive_clipping", "discrete_gaussian", "gaussian", "laplace"]
    assert policy["policy"] == {"min_noise_multiplier": 0.8}
    events = shell.get("audit-events?action=policy.replaced")["items"]
    assert {event["reason"] for event in events} == {"The board of 12 November."}


def test_secrets_are_written_once_for_their_owner_alone(shell: Shell) -> None:
    described = {
        "populations": [population(budgets=[budget("icu")])],
        "api_keys": [{"name": "icu trainer", "role": "trainer", "scope": "mimic/icu"}],
    }
    skipped = shell.apply(described, "--yes")
    assert skipped.status == 0
    assert "Skipped API key icu trainer: give --keys-out FILE, which gets the secret.\n" in skipped.out
    assert skipped.out.endswith("Applied 2 of 3 changes. What is done stays done; apply the file again to go on.\n")

    said = shell.apply(described, "--yes", "--keys-out", "keys", "--json")
    created = json.loads((shell.folder / "keys").read_text())
    assert stat.S_IMODE((shell.folder / "keys").stat().st_mode) == 0o600
    secret = created["key"].partition(".")[2]
    assert secret not in said.out + said.err
    assert (created["name"], created["role"], created["scope"][:4]) == ("icu trainer", "trainer", "bud_")
    assert [each["result"] for each in json.loads(said.out)["outcomes"]] == ["done"]
    assert shell.organisation.api(key=created["key"]).get("runs")[0]["items"] == []

    # A new role: the new key's secret is appended, and the old key ends.
    described["api_keys"][0]["role"] = "viewer"
    assert "Replaced API key icu trainer.\n" in shell.done(described, "--keys-out", "keys")
    assert len((shell.folder / "keys").read_text().splitlines()) == 2
    assert shell.get(f"api-keys/{created['id']}")["revoked_at"] is not None
    assert shell.apply(described, "--check").status == 0


def test_file_that_others_may_read_gets_no_secrets_and_nothing_is_changed(shell: Shell) -> None:
    folder, readable, link = (shell.folder / name for name in ("folder", "readable", "link"))
    folder.mkdir()
    readable.touch(0o644)
    (shell.folder / "private").touch(0o600)
    link.symlink_to("private")
    described = {"populations": [population()], "api_keys": [{"name": "x", "role": "viewer"}]}
    for target in (folder, readable, link):
        said = shell.apply(described, "--yes", "--keys-out", str(target))
        assert (said.status, f"--keys-out {target} " in said.err) == (2, True)
    assert shell.get("populations")["items"] == []


def protected(epsilon: float, thresholds: list[float], role: str, **policy: object) -> dict[str, Any]:
    """A population with two budgets and a key."""
    budgets = [budget("icu", epsilon, policy={"require_limit": True} | policy), budget("lab", 0.5 * len(thresholds))]
    mimic = population(budgets=budgets, alert_settings={"thresholds": thresholds, "forecast_days": 30})
    return {"populations": [mimic], "api_keys": [{"name": "x", "role": role}]}


def test_lower_protection_needs_confirm_and_another_person_once(shell: Shell) -> None:
    shell.done(protected(2.0, [0.5, 0.9], "viewer", max_epsilon=1.0), "--keys-out", "keys")
    then, before = protected(2.5, [0.9], "trainer"), shell.export()
    refused = shell.apply(then, "--yes", "--keys-out", "keys")
    assert refused.status == 2
    assert refused.err == (
        "These changes lower protection:\n"
        "  alert settings of mimic: removes the threshold 0.5\n"
        "  limit of mimic/icu: raises the limit\n"
        "  policy of mimic/icu: loosens max_epsilon\n"
        "  API key x: widens the role viewer to trainer\n"
        "Nothing was changed. Give --confirm to accept them, or change the file.\n"
    )
    assert shell.export() == before

    said = shell.done(then, "--confirm", "--keys-out", "keys")
    for words in (
        "Proposed limit of mimic/icu: prp_",
        "Proposed policy of mimic/icu: prp_",
        "Changed limit of mimic/lab.",
    ):
        assert words in said
    assert len(shell.get("proposals?status=open")["items"]) == 2
    again = shell.done(then, "--confirm", "--keys-out", "keys")
    assert "... limit of mimic/icu waits until another person approves prp_" in again
    assert again.endswith("No changes to apply; 2 waiting for approval.\n")
    assert len(shell.get("proposals")["items"]) == 2
    assert shell.apply(then, "--check").status == 1
    shell.organisation.approve_all()
    assert shell.apply(then, "--check").status == 0


def test_populations_that_two_persons_create_wait_and_then_go_on(shell: Shell) -> None:
    described = {
        "policy": {"approvers_to_create_population": 2},
        "populations": [population(size=100, budgets=[budget("icu", alert_settings={"thresholds": [0.9]})])],
        "api_keys": [{"name": "t", "role": "trainer", "scope": "mimic/icu"}],
    }
    said = shell.done(described, "--keys-out", "keys")
    assert "... budget mimic/icu waits until another person approves the population mimic\n" in said
    assert "Proposed population mimic: prp_" in said
    assert shell.done(described).endswith("No changes to apply; 4 waiting for approval.\n")
    shell.organisation.approve_all()
    assert shell.done(described, "--keys-out", "keys").endswith("Applied 3 of 3 changes.\n")
    assert shell.apply(described, "--check").status == 0
    before = shell.export()  # a fixed term stops everything, and says what to do
    described["populations"] = [population(size=200, policy={"require_limit": True}), population("eicu")]
    refused = shell.apply(described, "--yes")
    assert refused.status == 2
    assert "x mimic: `size` is 100 on the server and 200 in the file, and is fixed when the population" in refused.out
    assert refused.out.endswith("Nothing can be applied: 1 difference cannot be resolved.\n")
    assert shell.export() == before


def test_metadata_is_set_changed_and_removed(shell: Shell) -> None:
    about: dict[str, Any] = {
        "display_name": "MIMIC-IV",
        "owner": "ada",
        "description": "Intensive care,\nfrom 2008 on.",
    }
    about |= {"labels": {"team": "icu", "cost": "17"}, "links": [{"title": "Wiki", "url": "https://w.example/m"}]}
    shell.done({"populations": [population(budgets=[budget("icu", owner="icu")], **about)]})
    text = shell.export()
    assert about.items() <= yaml.safe_load(text)["populations"][0].items()
    assert shell.apply(text, "--check").status == 0
    changed: dict[str, Any] = {"labels": {"team": "lab"}, "links": [], "display_name": None}
    said = shell.done({"populations": [population(budgets=[budget("icu", owner="lab")], **changed)]})
    assert "  ~ metadata of mimic\n" in said
    assert said.endswith("Applied 2 of 2 changes.\n")
    found = shell.get("populations")["items"][0]
    assert (changed | {"owner": "ada"}).items() <= found.items()
    assert shell.get("budgets")["items"][0]["owner"] == "lab"


def test_refusal_in_the_middle_skips_the_accounts_under_it_and_the_next_apply_goes_on(shell: Shell) -> None:
    taken = budget("ICU team", budgets=[budget("x")])
    mimic = population(budgets=[budget("icu-team"), taken, budget("lab")])
    described = {"populations": [mimic, population("eicu")]}
    said = shell.apply(described, "--yes")
    assert said.status == 2
    assert "Failed: budget mimic/ICU team: 'ICU team' differs from 'icu-team', which exists" in said.out
    assert "Skipped budget mimic/ICU team/x: budget mimic/ICU team failed.\n" in said.out
    assert "Created population eicu.\n" in said.out
    assert said.out.endswith("Applied 4 of 6 changes. What is done stays done; apply the file again to go on.\n")
    taken["name"] = "surgery"
    assert shell.done(described).endswith("Applied 2 of 2 changes.\n")


WHY, SMALLER = {"reason": "Meanwhile."}, {"limit": {"epsilon": 7.0, "delta": 1e-5}}
CHANGED_MEANWHILE: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("POST", "accounts/{}/limit", SMALLER | WHY, {"limit": {"epsilon": 6.0, "delta": 1e-5}}),
    ("PUT", "accounts/{}/policy", {"policy": {"max_epsilon": 0.5}} | WHY, {"policy": {"max_epsilon": 1.0}}),
    ("PATCH", "populations/{}", {"owner": "eve"}, {"owner": "ada"}),
    (
        *("PUT", "accounts/{}/alert-settings", {"thresholds": [0.1], "forecast_days": 3}),
        {"alert_settings": {"thresholds": [0.5, 0.7, 0.8, 1.0]}},
    ),
]
"""A change by another person, and the one that was planned."""


def test_change_between_plan_and_apply_is_noticed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"mimic{number}" for number in range(len(CHANGED_MEANWHILE))]
    shell.done({"populations": [population(name) for name in names]})
    accounts = {each["path"]: each["id"] for each in shell.get("populations")["items"]}
    for name, (method, path, body, change) in zip(names, CHANGED_MEANWHILE, strict=True):
        sent = method, path.format(accounts[name]), body

        def think(*_: object, sent: tuple[str, str, dict[str, Any]] = sent, **__: object) -> bool:
            api = shell.organisation.api("privacy_officer")
            api.change(*sent, etag=api.get(sent[1])[1])
            return True

        monkeypatch.setattr(typer, "confirm", think)
        _say(monkeypatch, "")
        said = shell.apply({"populations": [population(name, **change), population("later")]})
        assert said.status == 2
        assert "was changed on the server since the plan was made. Run the command again" in said.err
        assert "Applied 0 of 2 changes." in said.out
    assert {each["path"] for each in shell.get("populations")["items"]} == {*names}


def test_person_at_a_terminal_is_asked_and_nothing_applied_before(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ([], ["--json"]):
        said = shell.apply({"populations": [population()]}, *options)
        assert (said.status, "--yes" in said.err) == (2, True)
    for answer, status in (("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0)):
        assert shell.get("populations")["items"] == []
        _say(monkeypatch, answer)
        said = shell.apply({"populations": [population()]})
        assert ("Apply these changes? [y/N]" in said.out, said.status) == (True, status)
    assert len(shell.get("populations")["items"]) == 1


def test_roles_apply_what_they_may(shell: Shell) -> None:
    described = {"policy": {"max_epsilon": 2.0}, "populations": [population()]}
    for role in ("viewer", "budget_admin"):
        shell.use(role)
        said = shell.apply(described, "--yes")
        assert (said.status, "Failed: policy of the organisation: " in said.out) == (2, True)
        assert "(insufficient_scope)\nSkipped population mimic: policy of the organisation failed.\n" in said.out
        # Nothing is created that the failed policy was to hold for.
        assert shell.get("populations")["items"] == []
    shell.use("privacy_officer")
    assert "Applied 2 of 2 changes." in shell.done(described)


def test_export_is_complete_and_names_what_it_leaves_out(
    shell: Shell, new_organisation: Callable[[], Organisation], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.done(EXAMPLE, "--keys-out", "keys")
    text = shell.export()
    assert shell.apply(text, "--check").status == 0
    exported = yaml.safe_load(text)
    assert [key["name"] for key in exported["api_keys"]] == ["grafana", "icu trainer"]
    said = shell.run("export-config")
    assert "is left out: it has no name." in said.err

    shell.use("viewer")
    said = shell.run("export-config")
    assert "API keys are left out: they need the permission keys:manage.\n" in said.err
    assert "api_keys" not in yaml.safe_load(said.out)

    # The same organisation elsewhere, from its file.
    elsewhere = new_organisation()
    monkeypatch.setattr(HttpApi, "from_environment", elsewhere.api)
    shell.done(text, "--keys-out", "others")
    assert shell.apply(text, "--check").status == 0
    assert yaml.safe_load(shell.export()) == exported


def test_error_of_file_or_server_is_reported_before_anything_is_sent(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = shell.apply("version: 1\npopulations:\n  - nme: mimic\n", "--yes")
    assert (said.status, said.out) == (2, "")
    assert "organisation.yaml:3: populations.0.nme: unknown member" in said.err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"version: 1\nbudgets: []\n")))
    assert shell.run("apply", "-f", "-", "--yes").err.startswith("stdin:2: budgets: unknown member")
    assert "cannot be read" in shell.run("apply", "-f", "missing.yaml", "--yes").err
    assert "give the organisation's file" in shell.run("apply", "--yes").err
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", "key_x.wrong")
    said = shell.apply({}, "--yes")
    assert (said.status, "answered 401" in said.err) == (2, True)
    monkeypatch.delenv("EPSILON_LEDGER_API_KEY")
    said = shell.run("apply", "--schema")
    assert (said.status, json.loads(said.out)["title"]) == (0, "OrganisationDocument")
