"""Pages of an application in this process, read as trees."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any, Final
from xml.etree import ElementTree as ET

import httpx2

from app.api.session_cookies import COOKIE
from tests.api.trainer import issue
from tests.ledgers import Ledger

VOID: Final = frozenset({"br", "hr", "img", "input", "link", "meta", "source"})
FIELDS: Final = frozenset({"input", "select", "textarea"})

_INVISIBLE = re.compile(r'<wbr>|<span class="unbroken">([^<]*)</span>')
"""Marks of where a line may break, and where not."""

_LABELS = re.compile(r' role="(?:row|cell|rowheader|columnheader)"| data-label="[^"]*"')
"""What app/dashboard/tables.py adds to each cell."""


def without_breaks(page: str) -> str:
    """A page without marks of where a line may break, and without the labels of cells."""
    return _LABELS.sub("", _INVISIBLE.sub(r"\1", page))


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.builder = ET.TreeBuilder()
        self.opened: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self.builder.end(tag)
        else:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag, f"</{tag}> closes another element"
        self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        if self.opened and self.opened[-1] != "script":
            self.builder.data(data)


def parse(text: str) -> ET.Element:
    """Parse a page, or a part of one."""
    parser = _Parser()
    parser.handle_starttag("page", [])
    parser.feed(re.sub("<!doctype html>", "", without_breaks(text), flags=re.IGNORECASE))
    parser.handle_endtag("page")
    return parser.builder.close()


def text_of(element: ET.Element) -> str:
    """Get the words of an element, with single spaces."""
    return " ".join(" ".join(element.itertext()).split())


@dataclass(frozen=True)
class Visitor:
    """A person who is signed in at an application in this process."""

    ledger: Ledger
    cookie: dict[str, str]

    def open(self, path: str, **headers: str) -> "Page":
        sent = self.cookie | {name.replace("_", "-"): value for name, value in headers.items()}
        return Page(self, path, self.ledger.http.get(path, headers=sent, follow_redirects=False))


def visitor(ledger: Ledger, role: str = "viewer", organisation: str = "hospital") -> Visitor:
    """Sign in with the key of a role."""
    return Visitor(ledger, {"Cookie": f"{COOKIE}={ledger.cookie(role, organisation)}"})


def scoped_visitor(ledger: Ledger, role: str, scope: str) -> Visitor:
    """Sign in with a new key for an account and what is under it."""
    issue(ledger, f"{role} of {scope}", role, scope)
    return visitor(ledger, f"{role} of {scope}")


@dataclass
class Page:
    """A page that was answered."""

    visitor: Visitor
    path: str
    reply: httpx2.Response

    @cached_property
    def root(self) -> ET.Element:
        """The page's elements, whose ids are unique: scripts find fields by them."""
        root = parse(self.reply.text)
        ids = sorted(each.get("id", "") for each in root.iter() if "id" in each.attrib)
        assert [one for one, next_ in pairwise(ids) if one == next_] == [], self.path
        return root

    @property
    def status(self) -> int:
        return self.reply.status_code

    @property
    def words(self) -> str:
        return text_of(self.root)

    @property
    def text(self) -> str:
        """All words, where what is marked up within a word leaves it whole."""
        return " ".join("".join(self.root.itertext()).split())

    def get(self, element_id: str) -> ET.Element:
        """Get the element with an id."""
        return next(each for each in self.root.iter() if each.get("id") == element_id)

    def has(self, element_id: str) -> bool:
        return any(each.get("id") == element_id for each in self.root.iter())

    def part(self, element_id: str) -> str:
        """Get the words of the element with an id."""
        return text_of(self.get(element_id))

    def region(self, name: str) -> ET.Element:
        """Get the element that is labelled so, by itself or by another element."""
        for each in self.root.iter():
            labelled = each.get("aria-labelledby")
            if each.get("aria-label") == name or (labelled and text_of(self.get(labelled)).startswith(name)):
                return each
        raise AssertionError(f"no region {name!r} in {self.words}")

    def article(self, title: str) -> str:
        """Get the words of the article whose title ends so."""
        found = [each for each in self.root.iter("article") if text_of(each[0]).endswith(title)]
        return text_of(found[0]) if found else ""

    def charts(self) -> list[dict[str, Any]]:
        """Get what scripts draw."""
        found = re.findall(r'<script type="application/json">(.*?)</script>', self.reply.text)
        return [json.loads(each) for each in found]

    def rows(self, element_id: str) -> list[str]:
        """Get the words of each row of a table's body."""
        return [text_of(row) for body in self.get(element_id).iter("tbody") for row in body.iter("tr")]

    def links(self, start: str = "/") -> list[str]:
        """Get the addresses of links that start so."""
        return [link for each in self.root.iter("a") if (link := each.get("href", "")).startswith(start)]

    def forms(self) -> dict[str, ET.Element]:
        """Get the forms that call the API by the words of their buttons; what a button says wins over its form."""
        found: dict[str, ET.Element] = {}
        for form in self.root.iter("form"):
            for button in form.iter("button"):
                if "data-call" in form.attrib:
                    whole = ET.Element("form", form.attrib | button.attrib)
                    whole.extend(form)
                    found.setdefault(text_of(button), whole)
        return found

    def fields(self, button: str) -> dict[str, str]:
        """Get what stands in the fields of a form, by their names."""
        return {each.get("name", ""): value_of(each) for each in fields_of(self.forms()[button])}


def fields_of(form: ET.Element) -> list[ET.Element]:
    """Get the fields of a form that have names."""
    return [each for each in form.iter() if each.tag in FIELDS and each.get("name")]


def value_of(field: ET.Element) -> str:
    """Get what stands in a field at first."""
    if field.tag == "select":
        options = list(field.iter("option"))
        return next((each for each in options if "selected" in each.attrib), options[0]).get("value", "")
    return (field.text or "") if field.tag == "textarea" else field.get("value", "")
