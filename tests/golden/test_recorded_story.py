"""The story's answers and rows are as recorded; `python -m tests.golden.test_recorded_story` records them again."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from app.persistence.database import Database
from app.persistence.schema import upgrade
from app.persistence.tables import metadata
from tests.clocks import stand_at
from tests.conftest import open_ledger
from tests.golden.recording import Recorder
from tests.golden.story import send
from tests.persistence.dump import dump

FOLDER = Path(__file__).parent
BEGUN = datetime(2026, 1, 1, 12, tzinfo=UTC)


@contextmanager
def _recorded(folder: Path) -> Iterator[dict[str, str]]:
    """The story's answers, and the rows that it left, by the names of their files."""
    with pytest.MonkeyPatch.context() as patch:
        moments, numbers = count(), count(1)
        stand_at(patch, lambda: BEGUN + timedelta(milliseconds=next(moments)))
        patch.setattr(secrets, "token_hex", lambda size: f"{next(numbers):0{2 * size}x}")
        patch.setattr(secrets, "randbits", lambda bits: 1 << (bits - 1))
        url = f"sqlite:///{folder / 'story.db'}"
        upgrade(database := Database(url))
        database.dispose()
        with open_ledger(folder, url) as ledger:
            story = Recorder(ledger)
            send(story)
            rows = story.steadied(dump(ledger.database))
        yield {"answers.json": _text(story.answers), "rows.json": _lines(rows)}


def _text(found: object) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _lines(rows: dict[str, list[list[Any]]]) -> str:
    """A line for each row, without what is null."""
    written = [
        json.dumps(
            {"table": name} | {column: value for column, value in zip(columns, row, strict=True) if value is not None}
        )
        for name, kept in rows.items()
        for columns in [metadata.tables[name].c.keys()]
        for row in kept
    ]
    return "[\n" + ",\n".join(written) + "\n]\n"


@pytest.mark.parametrize("name", ["answers.json", "rows.json"])
def test_story_reads_as_recorded(recorded: dict[str, str], name: str) -> None:
    assert json.loads(recorded[name]) == json.loads((FOLDER / name).read_text())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with _recorded(tmp_path_factory.mktemp("story")) as texts:
        yield texts


if __name__ == "__main__":
    with TemporaryDirectory() as folder, _recorded(Path(folder)) as texts:
        for name, text in texts.items():
            (FOLDER / name).write_text(text)
