"""Changes and outcomes as text for people and facts for programs."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.provisioning.changes import Change, ChangeSet, Operation, Resource
from app.provisioning.executor import Outcome, Result
from app.provisioning.state import Facts

MAX_VALUE: Final = 160

_SYMBOLS: Final[Mapping[Operation, str]] = {
    Operation.CREATE: "+",
    Operation.UPDATE: "~",
    Operation.REPLACE: "-/+",
    Operation.WAIT: "...",
}
_VERBS: Final[Mapping[Operation, str]] = {
    Operation.CREATE: "Created",
    Operation.UPDATE: "Changed",
    Operation.REPLACE: "Replaced",
}


def changes_text(found: ChangeSet) -> str:
    """Format changes for a terminal."""
    lines = [line for change in found.changes for line in _change_lines(change)]
    if found.unmanaged:
        lines += ["  Not managed, left as they are:", *(f"      {_safe(each)}" for each in found.unmanaged)]
    lines += [f"  x {_safe(conflict.path)}: {_safe(conflict.message)}" for conflict in found.conflicts]
    return "\n".join([*lines, *([""] if lines else []), _summary(found)])


def outcome_text(outcome: Outcome) -> str:
    """Format an outcome in a line."""
    change, detail = outcome.change, _safe(outcome.detail or "")
    title = _safe(change.title)
    match outcome.result:
        case Result.DONE:
            return f"{_VERBS[change.operation]} {title}."
        case Result.PROPOSED:
            return f"Proposed {title}: {detail} waits for another person's approval."
        case Result.FAILED:
            return f"Failed: {title}: {detail}"
        case Result.SKIPPED:
            return f"Skipped {title}: {detail}."


def changes_facts(found: ChangeSet) -> dict[str, Any]:
    """Convert changes to JSON."""
    return {
        "changes": [_change_facts(change) for change in found.changes],
        "conflicts": [{"path": each.path, "message": each.message} for each in found.conflicts],
        "not_managed": list(found.unmanaged),
    }


def outcome_facts(outcome: Outcome) -> dict[str, Any]:
    """Convert an outcome to JSON."""
    change = {"resource": str(outcome.change.resource), "path": outcome.change.path}
    return change | {"result": str(outcome.result), "detail": outcome.detail}


def _change_facts(change: Change) -> dict[str, Any]:
    return {
        "operation": str(change.operation),
        "resource": str(change.resource),
        "path": change.path,
        "before": change.before,
        "after": change.after,
        "loosens": list(change.loosens),
        "waits": change.reason,
        "revokes": list(change.revokes),
        "note": change.note,
    }


def _change_lines(change: Change) -> Iterator[str]:
    symbol = "!" if change.loosens and change.operation is not Operation.WAIT else _SYMBOLS[change.operation]
    waits = f" waits {change.reason}" if change.reason else ""
    yield _safe(f"  {symbol} {change.title}{waits}")
    for name, before, after in _differences(change):
        shown = after if change.before is None else f"{before} -> {after}"
        yield _safe(f"      {name}: {shown}")
    if change.operation is not Operation.WAIT:
        if change.loosens:
            yield f"      lowers protection: {_safe(', '.join(change.loosens))}"
        if change.note:
            yield _safe(f"      {change.note}")


def _differences(change: Change) -> Iterator[tuple[str, str, str]]:
    """List the members that differ, those of limits one by one."""
    before, after = _flat(change.before or {}), _flat(change.after)
    if change.resource is Resource.API_KEY and not change.after:
        return  # only revokes
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(name), after.get(name)
        if old != new:
            yield name, _value(old), _value(new)


def _flat(facts: Facts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in facts.items():
        found |= (
            {f"{name}.{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    return found


def _value(value: object) -> str:
    if isinstance(value, float):
        text = repr(value).removesuffix(".0")
    else:
        text = (
            "not set" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        )
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."


def _summary(found: ChangeSet) -> str:
    if found.conflicts:
        number = len(found.conflicts)
        return f"Nothing can be applied: {number} {'difference' if number == 1 else 'differences'} cannot be resolved."
    waiting = f"{len(found.waiting)} waiting for approval" if found.waiting else ""
    if not found.pending:
        return f"No changes to apply; {waiting}." if waiting else "No changes: the server is as the file describes."
    counts = {
        f"{number} to {operation}": number
        for operation in (Operation.CREATE, Operation.UPDATE, Operation.REPLACE)
        if (number := sum(change.operation is operation for change in found.pending))
    }
    loosening = f"{len(found.loosening)} of them lowering protection" if found.loosening else ""
    return f"Changes: {', '.join(filter(None, [*counts, loosening, waiting]))}."


def _safe(text: str) -> str:
    """Replace characters that could control a terminal; the server may be anyone's."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
