"""Rules for the names of tests: subject, condition, result."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
NOT_A_SUBJECT = re.compile(
    r"^test_(?:what|who|whom|it|they|that|this|there)_|_(?:any|every|no|some)body(?:_|$)|_who(?:so)?ever_"
)
LONGEST = 101


def test_every_test_is_named_by_its_subject() -> None:
    found = [name for file in sorted((ROOT / "tests").rglob("test_*.py")) for name in NAME.findall(file.read_text())]
    assert len(found) > 1000
    assert [name for name in found if NOT_A_SUBJECT.search(name) or len(name) > LONGEST] == []
