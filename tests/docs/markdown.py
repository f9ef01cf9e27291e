"""Reads as much of a Markdown file as the tests ask about."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fence:
    language: str
    text: str
    line: int


def section(text: str, title: str) -> str:
    """What stands under a heading of the second level."""
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text)
    assert found, f"there is no section {title!r}"
    return found[1]


def fences(text: str) -> list[Fence]:
    """The fenced blocks, in order."""
    found = re.finditer(r"(?ms)^```([a-z]*)\n(.*?)^```$", text)
    return [Fence(block[1], block[2], text.count("\n", 0, block.start()) + 1) for block in found]


def links(text: str) -> list[str]:
    """Where the links lead, those of code left out."""
    prose = re.sub(r"(?ms)^```.*?^```$", "", text)
    return re.findall(r"\]\(([^)\s]+)\)", prose)
