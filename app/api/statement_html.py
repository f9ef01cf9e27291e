"""Statements as self-contained HTML pages without scripts."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from typing import Any, Final

from app.api.lineage_html import lineage_section
from app.ledger.accounts.metadata import title_of

STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; }
h2 { font-size: 1.15rem; margin: 1.75rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid GrayText; }
th { font-weight: 600; }
th[scope="row"] { min-width: 9rem; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""
"""Inline, so that saved copies look the same; allowed by its hash."""

POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
    "frame-ancestors 'none'"
)
"""Content-Security-Policy of the page."""

TITLES = {"run_statement": "Privacy statement of a run", "population_statement": "Privacy statement of a population"}


def page_of(document: Mapping[str, Any]) -> str:
    """Render a signed statement as HTML, with all values escaped."""
    payload, signature = document["payload"], document["signature"]
    loss = payload["loss"]
    about = payload.get("run") or payload["population"]
    title = f"{TITLES[payload['type']]}: {_title(about)}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(loss['guarantee'])}</p>",
        "<h2>Loss</h2>",
        _table(
            {
                "Limit": f"epsilon {loss['limit']['epsilon']} at delta {loss['limit']['delta']}",
                "Spent, by the filter": _epsilon(loss, "epsilon_by_filter"),
                "As an RDP accountant prints it, if all was fixed in advance": _epsilon(loss, "epsilon_rdp"),
                "Plan": _plan(loss["plan"]),
            }
        ),
        "<h2>Who is protected</h2>",
        *(_table(population) for population in payload["protected"]),
        f"<h2>{'Run' if 'run' in payload else 'Population'}</h2>",
        _table(about),
    ]
    if "lineage" in payload:
        parts += lineage_section(payload["lineage"])
    if "accounts" in payload:
        limits = [
            (each["path"], each["kind"], each["limit"]["epsilon"], each["limit"]["delta"], _epsilon(each, "epsilon"))
            for each in payload["accounts"]
        ]
        parts += [
            "<h2>Accounts charged</h2>",
            _rows(("Account", "Kind", "Limit", "Delta", "Spent, by the filter"), limits),
        ]
    if "mechanisms" in payload:
        parts += [
            f"<h2>Mechanisms: {payload['steps']} steps, {payload['mechanisms_in_all']} different events</h2>",
            _rows(("Times", "Event"), [(each["count"], each["event"]) for each in payload["mechanisms"]]),
        ]
    if payload.get("experiments"):
        sweeps = [
            (each["path"], each["runs"], _epsilon(each, "epsilon"), each["choice"]) for each in payload["experiments"]
        ]
        parts += ["<h2>Chosen in a sweep</h2>", _rows(("Experiment", "Runs", "Spent on all", "Choice"), sweeps)]
    if "runs" in payload:
        rows = [(_title(run), run["status"], _epsilon(run, "epsilon"), run["delta"]) for run in payload["runs"]]
        parts += [f"<h2>{payload['runs_in_all']} runs</h2>", _rows(("Run", "Status", "Epsilon", "Delta"), rows)]
    parts += [
        "<h2>Covered</h2>",
        _list(payload["covered"]),
        "<h2>Not covered</h2>",
        _list(payload["not_covered"]),
        "<h2>Chain and versions</h2>",
        _table(payload["chain"] | payload["versions"]),
        "<h2>Signature</h2>",
        _table(signature | {"issued at": payload["issued_at"], "issued to": payload["issued_to"]}),
    ]
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _title(about: Mapping[str, Any]) -> str:
    return title_of(about.get("path") or about["name"], about.get("number", 1))


def _epsilon(facts: Mapping[str, Any], name: str) -> str:
    return "infinite" if facts[name] == "Infinity" else f"epsilon {facts[name]:.6g}"


def _plan(plan: Mapping[str, Any] | None) -> str:
    if plan is None:
        return "none"
    return f"{plan['state']}: {plan['steps_used']} of {plan['steps']} steps used, {plan['steps_remaining']} left"


def _table(facts: Mapping[str, object]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(str(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table>{rows}</table>"


def _rows(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    lines = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
