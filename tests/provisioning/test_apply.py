"""`epsilon-ledger apply` and `describe` against a real application in this process."""

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

    def apply(self, text: str | dict[str, Any], *options: str) -> Said:
        file = self.folder / "organisation.yaml"
        file.write_text(text if isinstance(text, str) else yaml.safe_dump({"version": 1} | text, sort_keys=False))
        return self.run("apply", "-f", str(file), *options)

    def done(self, text: str | dict[str, Any], *options: str) -> str:
        said = self.apply(text, "--yes", *options)
        assert said.status == 0, said
        return said.out

    def export(self) -> str:
        said = self.run("describe")
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


def say(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Sit at a terminal, and type."""
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)


def test_example_is_compared_applied_and_then_complete(shell: Shell) -> None:
    empty = shell.export()
    shown = shell.apply(EXAMPLE, "--dry-run")
    assert shown.status == 0
    for made in ("population mimic", "budget mimic/icu-team/sepsis", "API key grafana"):
        assert f"  + {made}\n" in shown.out
    assert "  ~ policy of the organisation\n" in shown.out
    assert shown.out.endswith("Changes: 12 to create, 1 to update.\n")
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


def test_person_at_a_terminal_is_asked_and_nothing_applied_before(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ([], ["--json"]):
        said = shell.apply({"populations": [population()]}, *options)
        assert (said.status, "--yes" in said.err) == (2, True)
    for answer, status in (("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0)):
        assert shell.get("populations")["items"] == []
        say(monkeypatch, answer)
        said = shell.apply({"populations": [population()]})
        assert ("Apply these changes? [y/N]" in said.out, said.status) == (True, status)
    assert len(shell.get("populations")["items"]) == 1


def test_roles_apply_what_they_may(shell: Shell) -> None:
    described = {"policy": {"max_epsilon": 2.0}, "populations": [population()]}
    for role in ("viewer", "budget_admin"):
        shell.use(role)
        said = shell.apply(described, "--yes")
        assert (said.status, "Failed: policy of the organisation: " in said.out) == (2, True)
        assert "(permission_denied)\nSkipped population mimic: policy of the organisation failed.\n" in said.out
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
    said = shell.run("describe")
    assert "is left out: it has no name." in said.err

    shell.use("viewer")
    said = shell.run("describe")
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
