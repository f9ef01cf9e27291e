"""The examples of schemas, recorded from one story: `python -m tests.golden.test_recorded_story`."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

EXAMPLES_FILE: Final = Path(__file__).with_name("examples.json")


@cache
def examples() -> dict[str, Any]:
    """Read the example of each schema, by its name."""
    found: dict[str, Any] = json.loads(EXAMPLES_FILE.read_text(encoding="utf-8"))
    return found
