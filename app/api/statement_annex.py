"""The annex of a statement's page: what an engineer needs to follow and check it."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from app.api.html_parts import bullets, code, download, heading, paragraph, rows, table
from app.api.lineage_html import lineage_section
from app.api.statement_numbers import epsilon, limit, percent, title
from app.ledger.audit import canonical

SCRIPT: Final = files("app.api").joinpath("verify_statement.sh").read_text()
"""Verifies a statement without Python."""


def annex(payload: Mapping[str, Any], signature: Mapping[str, Any]) -> list[str]:
    """Render the annex."""
    return [
        heading("Annex for engineers"),
        *_guarantee(payload["loss"]),
        *_numbers(payload),
        *(lineage_section(payload["lineage"]) if "lineage" in payload else ()),
        *_mechanisms(payload),
        *_runs(payload),
        heading("Covered", 3),
        bullets(payload["covered"]),
        heading("Chain, versions and signature", 3),
        table(payload["chain"] | payload["versions"] | signature),
        table({"issued at": payload["issued_at"], "issued to": payload["issued_to"], **(payload["period"] or {})}),
        *_script(),
    ]


def _guarantee(loss: Mapping[str, Any]) -> list[str]:
    needed = {"limit_needed": loss["limit_needed"]} if "limit_needed" in loss else {}
    precise = {
        "Limit": limit(loss["limit"]),
        "Changes of the limit": loss["limit_revision"],
        "Plan": _plan(loss["plan"]),
    }
    return [heading("The guarantee, precisely", 3), paragraph(loss["guarantee"]), table(precise | needed)]


def _plan(plan: Mapping[str, Any] | None) -> str:
    if plan is None:
        return "none"
    return f"{plan['state']}: {plan['steps_used']} of {plan['steps']} steps used, {plan['steps_remaining']} left"


def _numbers(payload: Mapping[str, Any]) -> list[str]:
    """Render what was charged to each account, and what that says of an attack."""
    losses = [(payload["loss"], title(payload.get("run") or payload["population"]))]
    losses += [(each, each["path"]) for each in payload["totals"]]
    lines = [
        (
            name,
            loss["epsilon"],
            loss["delta"],
            loss["own_delta"],
            loss["risk"]["by_charges"]["advantage"],
            loss["risk"]["by_charges"]["true_positive_rate"],
        )
        for loss, name in losses
    ]
    heads = ("Charged to", "Epsilon", "Delta", "Deltas of its mechanisms", "Advantage", "True positive rate")
    rate = percent(payload["loss"]["risk"]["false_positive_rate"])
    parts = [
        heading("Numbers", 3),
        paragraph(
            "Epsilon of what was charged, as the tightest accountant computes it for releases that were fixed in "
            f"advance, and bounds on every attack out of the same releases. The true positive rate is at {rate} false "
            "positives. (Dong, Roth, Su 2022; Kulynych et al. 2024)"
        ),
        rows(heads, lines),
    ]
    if "accounts" in payload:
        limits = [(each["path"], each["kind"], limit(each["limit"]), epsilon(each)) for each in payload["accounts"]]
        parts.append(rows(("Account", "Kind", "Limit", "Charged"), limits))
    return parts


def _mechanisms(payload: Mapping[str, Any]) -> list[str]:
    parts = [
        heading(f"Mechanisms: {payload['steps']} steps, {payload['mechanisms_in_all']} different events", 3),
        rows(("Times", "Event"), [(each["count"], canonical(each["event"])) for each in payload["mechanisms"]]),
    ]
    if payload.get("experiments"):
        sweeps = [(each["path"], each["runs"], epsilon(each), each["choice"]) for each in payload["experiments"]]
        parts += [heading("Chosen in a sweep", 3), rows(("Experiment", "Runs", "Charged in all", "Choice"), sweeps)]
    return parts


def _runs(payload: Mapping[str, Any]) -> list[str]:
    if "runs" not in payload:
        return []
    lines = [(title(run), run["status"], epsilon(run), run["delta"]) for run in payload["runs"]]
    return [heading(f"{payload['runs_in_all']} runs", 3), rows(("Run", "Status", "Charged", "Delta"), lines)]


def _script() -> list[str]:
    saved = download("verify_statement.sh", "verify_statement.sh", SCRIPT, "text/x-shellscript")
    command = "<code>sh verify_statement.sh statement.json signing.pub</code>"
    return [
        heading("Check it without Python", 3),
        f"<p>Save {saved}, and run {command}. It needs OpenSSL 3.</p>",
        code(SCRIPT),
    ]
