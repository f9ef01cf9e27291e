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


@dataclass(frozen=True)
class Block:
    """Commands, or what else is indented or fenced as bash, under a heading of the second level."""

    page: str
    section: str
    line: int
    text: str

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0]


def blocks(page: str) -> list[Block]:
    """The indented blocks of a page of docs/, and those that are fenced as bash or SQL; JSON left out."""
    found: list[Block] = []
    title, lines = "", (ROOT / "docs" / f"{page}.md").read_text().splitlines()
    place = 0
    while place < len(lines):
        begin = place
        if lines[place].startswith("```"):
            place = next(at for at in range(place + 1, len(lines)) if lines[at].startswith("```"))
            if lines[begin] in {"```bash", "```sql"}:
                found.append(Block(page, title, begin + 1, "\n".join(lines[begin + 1 : place])))
        elif lines[place].startswith("## "):
            title = lines[place].removeprefix("## ")
        elif place and not lines[place - 1] and (indent := _indent(lines[place])) >= 4:
            while place + 1 < len(lines) and _indent(lines[place + 1]) >= indent:
                place += 1
            text = "\n".join(line[indent:] for line in lines[begin : place + 1])
            if not text.startswith("{"):
                found.append(Block(page, title, begin + 1, text))
        place += 1
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0
