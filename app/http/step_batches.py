"""Long bodies of requests for steps, whose items are parsed once for each text: a batch repeats few of them.

The text is split where one item ends and the next begins. Each piece must be an item by itself, and two other items
must be read as just these in their place. Then the pieces are the items: a JSON value ends where it ends.
"""

import re
from dataclasses import replace
from typing import Final

from app.accounting.errors import AccountingError
from app.accounting.events import DpEvent
from app.accounting.events.composite import MAX_EVENTS
from app.accounting.pricing_effort import require_affordable_events
from app.api.strict_json import strict_loads
from app.http.step_bodies import MOST_KEPT, MOST_KEPT_BYTES, StepBody, parse_body, read_body
from app.ledger.errors import LedgerError

MOST_PARSED_BYTES: Final = 65_536
"""Longer bodies that are not read by their items are left to the usual route."""

MOST_NEW_ITEMS: Final = 64
"""A body with more items of new texts is parsed as a whole, which is faster."""

_BEGINNING: Final = re.compile(rb'[^\[]{0,2048}[{,\s]"events": ?\[(\{"(?:event|count)": ?)')
"""Up to the first array, and how its first item begins."""

_TWO_ITEMS: Final = b",".join([b'{"event":{"type":"gaussian","noise_multiplier":1},"count":%d}' % n for n in (1, 2)])

_Item = tuple[DpEvent | None, int]

_items: Final[dict[bytes, dict[bytes, _Item]]] = {}
"""By how items begin, and their further text."""


def read_long_body(content: bytes, run_id: str, key: str | None) -> StepBody | None:
    """Read a long body of a run, with its idempotency key; None: the usual route has to."""
    body = read_batch(content, run_id, key)
    if body is None and len(content) <= MOST_PARSED_BYTES:
        body = parse_body(content, run_id, key)
    return body


def read_batch(content: bytes, run_id: str, key: str | None) -> StepBody | None:
    """Read a body by the texts of its items; None: it has no `events`, or something about them is unusual."""
    begin, end = _BEGINNING.match(content), content.rfind(b"}]")
    if begin is None:
        return None
    around = b"%b%b%b" % (content[: begin.start(1)], _TWO_ITEMS, content[end + 1 :])
    body = read_body(around, run_id, key) if len(around) <= MOST_KEPT_BYTES else None
    if body is None or [count for _, count in body.request.items] != [1, 2]:
        return None
    opening = begin[1]
    comma = b"}," if b"}," + opening in content else b"}, "
    items = _items_of(opening, content[begin.end() : end].split(comma + opening))
    return None if items is None else body._replace(request=replace(body.request, items=items))


def _items_of(opening: bytes, texts: list[bytes]) -> tuple[_Item, ...] | None:
    """Look up items by their texts between `opening` and the closing brace; None: one of them is unusual."""
    known, different = _items.setdefault(opening, {}), set(texts)
    new = different - known.keys()
    if len(known) + len(new) > MOST_KEPT:
        known.clear()
        new = different
    if len(new) > MOST_NEW_ITEMS or len(texts) > MAX_EVENTS:
        return None
    for text in new:
        item = _parsed_item(b"%b%b}" % (opening, text)) if len(text) <= MOST_KEPT_BYTES else None
        if item is None:
            return None
        known[text] = item
    try:
        require_affordable_events([event for event, _ in map(known.__getitem__, different) if event is not None])
    except AccountingError:
        return None
    return tuple(map(known.__getitem__, texts))


def _parsed_item(text: bytes) -> _Item | None:
    """Parse an item strictly, as a value alone and as the one item of a body."""
    try:
        strict_loads(text)
    except LedgerError:
        return None
    body = parse_body(b'{"events":[%b]}' % text)
    return body and body.request.items[0]
