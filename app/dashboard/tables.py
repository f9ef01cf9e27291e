"""Labels of table cells, so that narrow screens show each row as a card."""

import re
from itertools import count
from typing import Final

from markupsafe import Markup

_HEAD: Final = re.compile(r'<th scope="col"[^>]*>(.*?)</th>', re.DOTALL)
_ROW: Final = re.compile(r"<tr\b[^>]*>.*?</tr>", re.DOTALL)
_CELL: Final = re.compile(r"<(?P<name>tr|td|th)\b(?P<attributes>[^>]*)>")
_TAG: Final = re.compile(r"<[^>]+>")

_ROLES: Final = {"tr": "row", "td": "cell", "th": "rowheader"}
"""Said explicitly: browsers forget them where rows and cells are no longer laid out as a table."""


def labelled(table: str) -> Markup:
    """Give the rows and cells of a table their roles, and each cell the label of its column (`data-label`).

    Args:
        table: rendered content of a table element, whose thead has one `<th scope="col">` for each column. Cells that
            span columns get no label.
    """
    head, end, body = str(table).partition("</thead>")
    labels = [_TAG.sub("", text).strip().replace('"', "&quot;") for text in _HEAD.findall(head)]
    head = _CELL.sub(lambda tag: _with(tag, "row" if tag["name"] == "tr" else "columnheader"), head)
    return Markup(head + end + _ROW.sub(lambda row: _labelled_row(row[0], labels), body))  # noqa: S704 - it was rendered


def _labelled_row(row: str, labels: list[str]) -> str:
    places = count()

    def label(tag: re.Match[str]) -> str:
        role = _ROLES[tag["name"]]
        if tag["name"] == "tr":
            return _with(tag, role)
        place = next(places)
        if place >= len(labels) or "colspan" in tag["attributes"]:
            return _with(tag, role)
        return _with(tag, role, f' data-label="{labels[place]}"')

    return _CELL.sub(label, row)


def _with(tag: re.Match[str], role: str, more: str = "") -> str:
    return f'<{tag["name"]}{tag["attributes"]} role="{role}"{more}>'
