"""Names that a person could take for one another: by case, by separators, or by characters that look alike."""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final, Literal

_BETWEEN_DIGITS: Final = "\x1f"
"""Stands for the separators between two digits; no name has it, because it cannot be printed."""

_DOTTED: Final = ("i", "j")
_DOT_ABOVE: Final = "\u0307"
"""A dot above a letter that has one already is not seen; a Turkish capital in small letters has it."""

_LEFT_TO_RIGHT: Final = "\u200e"
"""Stands around the right-to-left characters of the table, for whoever prints it."""

_INVISIBLE: Final = frozenset(
    {
        *map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)),
        *map(chr, range(0x180B, 0x1810)),
        *map(chr, range(0xFE00, 0xFE10)),
        *map(chr, range(0xE0100, 0xE01F0)),
    }
)
"""What can stand in a name and is not seen: ignorable characters, fillers, and the empty Braille pattern."""


def name_skeleton(name: str) -> str:
    """Get what names have in common that differ only by case, separators, or small letters that look alike.

    Args:
        name: of a population or a budget.

    Returns:
        For comparing, not for showing.

    Source: Unicode Technical Standard 39, section 4 (Confusable Detection), of the name in small letters.
    """
    return _skeleton(_bare(name).casefold())


def look_alike(name: str, other: str) -> bool:
    """Whether a person could take one name for the other.

    No one skeleton covers both case and look-alike characters: a capital Greek nu looks like N and a small one like v,
    which would make n the same as v. So names are compared in small letters, in capitals, and as they are written. The
    last is done twice, the second time without making compatible characters one: a lunate sigma looks like c, and the
    sigma that it is compatible with does not.
    """
    return not _forms(name).isdisjoint(_forms(other))


@lru_cache(maxsize=65_536)
def _forms(name: str) -> frozenset[str]:
    bare, written = _bare(name), _bare(name, "NFD")
    forms = (name_skeleton(name), _skeleton(bare.upper()), _skeleton(bare).casefold(), _skeleton(written).casefold())
    return frozenset(forms)


def _bare(name: str, form: Literal["NFKC", "NFD"] = "NFKC") -> str:
    """A name without separators; where they stand between digits they count: v1.12 is not v11.2."""
    kept: list[str] = []
    separated = False
    for character in unicodedata.normalize(form, name):
        if _separates(character):
            separated = True
        elif character not in _INVISIBLE:
            if separated and kept and kept[-1].isdecimal() and character.isdecimal():
                kept.append(_BETWEEN_DIGITS)
            kept.append(character)
            separated = False
    return "".join(kept)


def _separates(character: str) -> bool:
    return unicodedata.category(character)[0] in "PZ"


def _skeleton(text: str) -> str:
    table = _prototypes()
    seen = "".join(table.get(character, character) for character in unicodedata.normalize("NFD", text))
    for letter in _DOTTED:
        seen = seen.replace(f"{letter}{_DOT_ABOVE}", letter)
    return "".join(character for character in unicodedata.normalize("NFD", seen) if not _separates(character))


@cache
def _prototypes() -> Mapping[str, str]:
    """By character, what the table of confusables has it look like; a character that stands for others is not in it."""
    table = dict(_pairs())
    return {source: "".join(table.get(each, each) for each in target) for source, target in table.items()}


def _pairs() -> Iterator[tuple[str, str]]:
    # The table alone is read: the package keeps 10 MB of names of characters besides, in every process that imports it.
    alike = json.loads(files("confusable_homoglyphs").joinpath("confusables.json").read_text("utf-8"))
    for source, targets in alike.items():
        if len(targets) > 1 or len(source.strip(_LEFT_TO_RIGHT)) > 1:
            continue  # others look like it
        [target] = (each["c"] for each in targets)
        pair = tuple(each.strip(_LEFT_TO_RIGHT) for each in (source, target))
        if len(alike[target]) > 1 or _order(pair[1]) < _order(pair[0]):  # of a pair of two, either could be the one
            yield pair[0], pair[1]


def _order(text: str) -> tuple[int, str]:
    return -len(text), text
