"""Names and ids that callers choose: their greatest lengths in characters, and names that look alike."""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final, Literal

from app.ledger.errors import InvalidInputError

MAX_NAME_LENGTH: Final = 100
MAX_PREFIX_LENGTH: Final = 50
"""Of what begins the names of data blocks by calendar."""
KEY_LENGTH: Final = 255
"""Of an idempotency key."""
ACTOR_LENGTH: Final = 300
"""Of the author of a request, as audit events name it."""
REQUEST_ID_LENGTH: Final = 64
MAX_URL_LENGTH: Final = 2000
"""Of a receiver's URL."""
MAX_EMAIL_LENGTH: Final = 254
"""Of a mail address (RFC 5321)."""
EMAIL_PATTERN: Final = (
    r"^[a-zA-Z0-9!#$%&'*+/=^_`{|}~-]+(?:\.[a-zA-Z0-9!#$%&'*+/=^_`{|}~-]+)*"
    r"@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$"
)
"""Mail addresses without quoted parts: those of HTML's `<input type="email">`, with a dot only between characters, and
without a question mark, with which an address would read as an encoded word (RFC 2047)."""


def check_name(name: str) -> str:
    """Raise InvalidInputError unless a name is readable and fits into a path."""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidInputError(f"A name has 1 to {MAX_NAME_LENGTH} characters.")
    if "/" in name or not name.isprintable() or name != name.strip():
        raise InvalidInputError("A name has no slash, no control characters, and no space at its ends.")
    if not is_visible(name):
        raise InvalidInputError("A name has a letter, a digit or a sign that can be seen.")
    return name


def is_visible(text: str) -> bool:
    """Whether a text has a character that can be seen by itself: a letter, digit, punctuation mark or symbol."""
    return any(character not in _INVISIBLE and unicodedata.category(character)[0] in "LNPS" for character in text)


def is_line(text: str) -> bool:
    """Whether a text for people is one visible line without control characters."""
    return text.isprintable() and is_visible(text)


def is_text(text: str) -> bool:
    """Whether a text for people is visible, and has no control characters but line breaks and tabs."""
    return is_visible(text) and all(character.isprintable() or character in "\n\t" for character in text)


def is_subject(text: str) -> bool:
    """Whether a person's or workload's id is shown as it is: no space at its ends, and no character that is unseen."""
    return is_line(text) and text == text.strip() and _INVISIBLE.isdisjoint(text)


_BETWEEN_DIGITS: Final = "\x1f"
"""Replaces the separators between two digits; it is not printable, so no name has it."""

_DOTTED: Final = ("i", "j")
_DOT_ABOVE: Final = "\u0307"
"""A dot above a letter that already has one is invisible; a lowercased Turkish capital has it."""

_LEFT_TO_RIGHT: Final = "\u200e"
"""Surrounds the right-to-left characters in the table, for printing."""

_INVISIBLE: Final = frozenset(
    {
        *map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x13441, 0x13442, 0x1D159)),
        *map(chr, range(0x180B, 0x1810)),
        *map(chr, range(0xFE00, 0xFE10)),
        *map(chr, range(0xE0100, 0xE01F0)),
    }
)
"""Invisible characters that a name may contain: ignorables, fillers and the empty Braille pattern."""


def name_skeleton(name: str) -> str:
    """Compute the common form of lowercase look-alike names.

    Source: Unicode Technical Standard 39, section 4 (Confusable Detection), of the lowercased name.
    """
    return _skeleton(_bare(name).casefold())


def look_alike(name: str, other: str) -> bool:
    """Check whether a person could confuse two names.

    No single skeleton covers both case and look-alike characters: a capital Greek nu looks like N and a small one like
    v, which would make n equal v. So names are compared in lowercase, in uppercase and as written. The last is done
    twice, the second time without compatibility normalization: a lunate sigma looks like c, and the sigma that it
    normalizes to does not.
    """
    return not _forms(name).isdisjoint(_forms(other))


@lru_cache(maxsize=65_536)
def _forms(name: str) -> frozenset[str]:
    bare, written = _bare(name), _bare(name, "NFD")
    forms = (name_skeleton(name), _skeleton(bare.upper()), _skeleton(bare).casefold(), _skeleton(written).casefold())
    return frozenset(forms)


def _bare(name: str, form: Literal["NFKC", "NFD"] = "NFKC") -> str:
    """Remove the separators, except between digits: v1.12 is not v11.2."""
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
    """Load the character that each confusable character looks like."""
    table = dict(_pairs())
    return {source: "".join(table.get(each, each) for each in target) for source, target in table.items()}


def _pairs() -> Iterator[tuple[str, str]]:
    # Only the table is read: importing the package would load 10 MB of character names into every process.
    alike = json.loads(files("confusable_homoglyphs").joinpath("confusables.json").read_text("utf-8"))
    for source, targets in alike.items():
        if len(targets) > 1 or len(source.strip(_LEFT_TO_RIGHT)) > 1:
            continue  # a prototype itself
        [target] = (each["c"] for each in targets)
        pair = tuple(each.strip(_LEFT_TO_RIGHT) for each in (source, target))
        if len(alike[target]) > 1 or _order(pair[1]) < _order(pair[0]):  # of a pair, either could be the prototype
            yield pair[0], pair[1]


def _order(text: str) -> tuple[int, str]:
    return -len(text), text
