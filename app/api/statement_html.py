"""Statements as self-contained HTML pages without scripts: one page for a lawyer, then an annex for an engineer."""

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from typing import Any, Final

from app.accounting.risk import PEOPLE
from app.api.html_parts import bullets, download, heading, link, paragraph, rows, table
from app.api.lineage_html import lineage_in_words
from app.api.statement_annex import annex
from app.api.statement_numbers import day, epsilon, limit, named, percent, title
from app.ledger.audit import canonical
from app.ledger.wording import counted, joined

STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; }
h2 { font-size: 1.15rem; margin: 1.75rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid GrayText; }
th { font-weight: 600; }
th[scope="row"] { min-width: 9rem; }
@media (min-width: 40rem) { th[scope="col"] { overflow-wrap: normal; } }
ul { padding-left: 1.25rem; }
a { color: inherit; }
pre { white-space: pre-wrap; font-size: .8rem; border: 1px solid GrayText; padding: .5rem; }
section + section { border-top: 2px solid; margin-top: 2.5rem; }
@media print {
:root { font-size: 9pt; line-height: 1.3; }
body { margin: 0; max-width: none; padding: 0; }
h1 { font-size: 1.3rem; margin: 0 0 .4rem; }
h2 { break-after: avoid; margin: .6rem 0 .1rem; }
p, ul, table { margin: .2rem 0; }
th, td { padding: .1rem .4rem; }
tr { break-inside: avoid; }
section + section { break-before: page; border: 0; }
}
"""
"""Inline, so that saved copies look the same; allowed by its hash."""

POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
    "frame-ancestors 'none'"
)
"""Content-Security-Policy of the page."""

TITLES: Final = {
    "run_statement": "Privacy statement of a run",
    "population_statement": "Privacy statement of a population",
}
MOST_NAMES: Final = 8
"""Runs that the first page names; the annex has more."""

_RISK: Final = (
    "What this means for one {unit}: suppose that somebody tests whether their records were used. The advantage is how "
    "much more often the best test says so where it is true than where it is not: 0 % is guessing, 100 % is certainty. "
    "If it may be wrong about 10 of 1,000 whose records were not used, it finds the stated number of 1,000 whose "
    "records were; guessing finds 10. By the limit, that holds in any case; by what was charged, if all releases were "
    "fixed in advance."
)
_CHECK: Final = (
    "This page is a reading aid. What is signed is the document in it: {document}. Check it with <code>epsilon-ledger "
    "verify-statement statement.json --public-key signing.pub</code>, or by the script of the annex. Take the public "
    "key from the issuer in person, not from here. {back}"
)


def page_of(document: Mapping[str, Any]) -> str:
    """Render a signed statement as HTML, with all values escaped."""
    payload = document["payload"]
    about = payload.get("run") or payload["population"]
    name = f"{TITLES[payload['type']]}: {title(about)}"
    first = [
        heading(name, 1),
        table(_head(payload, about)),
        *_people(payload["protected"]),
        *_released(payload),
        *([paragraph(lineage_in_words(payload["lineage"]))] if "lineage" in payload else ()),
        *_guaranteed(payload),
        *_limits(payload["limits"]),
        heading("What is not covered"),
        bullets(payload["not_covered"]),
        heading("Check this statement"),
        _check(document, about["id"]),
    ]
    parts = ("\n".join(each) for each in (first, annex(payload, document["signature"])))
    body = "\n".join(f"<section>\n{each}\n</section>" for each in parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(name)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(payload: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, str]:
    period = payload["period"]
    times = "nothing was released yet"
    if period is not None:
        times = f"{day(period['first'])} to {day(period['last'])}"
    facts = {
        "Organisation": payload["organisation_name"],
        "About": named(about),
        "Issued by": f"Epsilon Ledger at {payload['issuer']['url'] or 'an address that its operator has not set'}",
        "Issued on": day(payload["issued_at"]),
        "First to last release": times,
    }
    if "run" in payload and not payload["run"]["final"]:
        facts["Status"] = f"{payload['run']['status']}: more may be released"
    return facts


def _people(protected: list[Mapping[str, Any]]) -> list[str]:
    parts = [heading("Whose data")]
    for each in protected:
        name = each["display_name"] or each["name"]
        size = "" if each["size"] is None else f", {each['size']:,} of them"
        about = f" {each['description']}" if each["description"] else ""
        parts.append(
            paragraph(
                f"{name}{size}.{about} What is protected is everything that the data hold about one "
                f"{each['privacy_unit']}: the question that must stay open is whether a result was computed "
                f"{each['difference']}."
            )
        )
    return parts


def _released(payload: Mapping[str, Any]) -> list[str]:
    parts = [heading("What was released")]
    if "runs" in payload:
        names = [named(run) for run in payload["runs"][:MOST_NAMES]]
        more = payload["runs_in_all"] - len(names)
        names += [counted(more, "other run")] if more else []
        parts.append(paragraph(f"Results of {joined(names)}." if names else "Nothing."))
    words = [f"{each['releases']:,} times {each['words']}" for each in payload["mechanisms_in_words"]]
    parts.append(paragraph(f"{counted(payload['steps'], 'release')}{': ' if words else ''}{'; '.join(words)}."))
    return parts


def _guaranteed(payload: Mapping[str, Any]) -> list[str]:
    """Render the guarantees in words, and their two numbers: what a run adds, and the total of its people."""
    loss, totals = payload["loss"], payload["totals"]
    columns = [("This run adds" if totals else "All releases about these people", loss)]
    columns += [(f"All releases about the people of {each['path']}", each) for each in totals]
    said = dict.fromkeys(" ".join(each["in_words"]) for _, each in columns)
    lines = [
        ("Limit", *(limit(each["limit"]) + (" (exceeded)" if each["exceeded"] else "") for _, each in columns)),
        ("Risk by the limit", *(_risk(each["risk"]["by_limit"]) for _, each in columns)),
        ("Charged so far", *(epsilon(each) for _, each in columns)),
        ("Risk by what was charged", *(_risk(each["risk"]["by_charges"]) for _, each in columns)),
    ]
    unit = payload["protected"][0]["privacy_unit"]
    return [
        heading("What is guaranteed"),
        *map(paragraph, said),
        rows(("Number", *(name for name, _ in columns)), lines),
        paragraph(_RISK.format(unit=unit)),
    ]


def _risk(risk: Mapping[str, Any] | None) -> str:
    if risk is None:
        return "not bounded"
    return (
        f"advantage at most {percent(risk['advantage'])}; at most {risk['singled_out_of_1000']:,} of {PEOPLE:,} found"
    )


def _limits(limits: list[Mapping[str, Any]]) -> list[str]:
    lines = [
        (account["path"], limit(each["limit"]), day(each["since"]), each["set_by"], each["approved_by"] or "not needed")
        for account in limits
        for each in account["limits"]
    ]
    return [
        heading("Limits, and who approved them"),
        rows(("Account", "Limit", "Since", "Set by", "Approved by"), lines),
    ]


def _check(document: Mapping[str, Any], account_id: str) -> str:
    saved = download("statement.json", "statement.json", canonical(document), "application/json")
    page = f"/runs/{account_id}" if account_id.startswith("run_") else f"/accounts/{account_id}"
    back = link("Go to its page in the ledger", f"{document['payload']['issuer']['url'] or ''}{page}")
    return f"<p>{_CHECK.format(document=saved, back=back + '.')}</p>"
