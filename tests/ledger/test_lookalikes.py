"""Names that a person could take for one another are found, and others are left in peace."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.errors import InvalidInputError
from app.ledger.names import check_name, is_line, is_subject, is_text, look_alike, name_skeleton

ALIKE = [
    *(("mimic", "Mimic"), ("mimic", "MIMIC"), ("MIMIC", "MlMlC"), ("mimic", "rnimic"), ("form", "\u017form")),
    # Cyrillic letters, full width, mathematical bold, a grapheme joiner, two fillers and a lunate sigma.
    *(("mimic", "m\u0456mic"), ("mimic", "\u041c\u0406\u041c\u0406\u0421"), ("hospital", "\u04bbospital")),
    *(("mimic", "\uff4d\uff49\uff4d\uff49\uff43"), ("mimic", "\U0001d426\U0001d422\U0001d426\U0001d422\U0001d41c")),
    *(("mimic", "mi\u034fmic"), ("mimic", "mimic\u3164"), ("mimic", "mi\u115fmic")),
    ("mimic", "mimi\u03f2"),
    *(("mimic", "mi\u0307mic"), ("mimic", "M\u0130M\u0130C")),  # a second dot on the i, and Turkish capitals
    *(("icu-team", "icu_team"), ("icu-team", "ICU team"), ("icu-team", "icuteam"), ("icu-team", "icu\u2010team")),
    *(("mimic-2", "mimic2"), ("2026-01", "2026_01"), ("cohort-1", "cohort-l"), ("phase-I", "phase-1"), ("v10", "vlO")),
    *(("\u03bd\u03b5\u03bf", "\u039d\u0395\u039f"), ("stra\u00dfe", "STRASSE"), ("caf\u00e9", "cafe\u0301")),
]
APART = [
    *(("mimic", "mimic2"), ("mimic", "mimi"), ("cohort-1", "cohort-2"), ("cohort-1", "cohort-11"), ("v1.12", "v11.2")),
    *(("2026-01-11", "2026-011-1"), ("group-i", "group-l"), ("group-n", "group-v"), ("group-u", "group-y")),
    *(("a", "b"), ("cafe", "caf\u00e9"), ("C++", "C")),
]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(("name", "other"), ALIKE)
def test_names_that_differ_by_case_separators_or_look_alikes_are_alike(name: str, other: str) -> None:
    assert look_alike(name, other)
    assert look_alike(other, name)


@pytest.mark.parametrize(("name", "other"), APART)
def test_names_that_differ_by_more_are_apart(name: str, other: str) -> None:
    assert not look_alike(name, other)
    assert not look_alike(other, name)


UNSEEN = ["", " ", "\u3164", "\u2800", "\uffa0 \u115f", "\u0301", "\ufe0f", "\U0001d159", "\U00013441"]
"""Texts of spaces, fillers, blanks of a script and marks without a letter."""


def test_name_and_text_of_nothing_that_is_seen_is_refused() -> None:
    for text in UNSEEN:
        assert [holds(text) for holds in (is_line, is_text, is_subject)] == [False] * 3, ascii(text)
        with pytest.raises(InvalidInputError):
            check_name(text)
    for text in ("a", "7", "?", "\u2603", "\u6771\u4eac", "e\u0301", "\u270c\ufe0f"):
        assert check_name(text) == text
        assert is_line(text)
    assert is_text("a\n\tb")
    assert not is_line("a\nb")
    assert not is_text("a\x07")
    assert [is_subject(text) for text in ("auth0|63 \u00e9", " a", "a ", "a\u3164")] == [True, False, False, False]


def test_small_letters_and_digits_are_apart_from_one_another() -> None:
    names = [f"group-{each}" for each in LETTERS] + [f"group-{each}" for each in range(100)]
    found = [(one, other) for one, other in combinations(names, 2) if look_alike(one, other)]
    assert found == [
        ("group-i", "group-1"),  # in capitals
        ("group-l", "group-1"),
        ("group-o", "group-0"),
    ]


@given(st.text(min_size=1, max_size=20))
def test_a_name_is_like_itself_in_other_letters(name: str) -> None:
    assert look_alike(name, name)
    assert name_skeleton(name) == name_skeleton(name.casefold())
    assert look_alike(name, f" {name}_")
