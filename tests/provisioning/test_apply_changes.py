"""`epsilon-ledger apply` beside other people: lower protection, approvals, and changes in the meantime."""

from typing import Any

import pytest
import typer

from tests.provisioning.organisation import budget, population
from tests.provisioning.test_apply import Shell, say, shell

__all__ = ["shell"]


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


def test_change_between_comparison_and_apply_is_noticed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
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
        say(monkeypatch, "")
        said = shell.apply({"populations": [population(name, **change), population("later")]})
        assert said.status == 2
        assert "was changed on the server since it was read. Run the command again" in said.err
        assert "Applied 0 of 2 changes." in said.out
    assert {each["path"] for each in shell.get("populations")["items"]} == {*names}


def test_limits_in_every_unit_are_applied_described_and_changed(shell: Shell) -> None:
    def described(rho: float) -> dict[str, Any]:
        budgets = [budget("pure", limit={"epsilon": 1.0, "delta": 0}), budget("census", limit={"rho": rho})]
        return {"populations": [population(limit={"mu": 1.0}, budgets=budgets)]}

    shell.done(described(0.5))
    assert shell.apply(described(0.5), "--check").status == 0
    exported = shell.export()
    for words in ("mu: 1.0", "rho: 0.5", "epsilon: 1.0\n"):
        assert words in exported
    assert "Changed limit of mimic/census." in shell.done(described(0.25))
    refused = shell.apply(described(0.75), "--yes")
    assert "limit of mimic/census: raises the limit" in refused.err
