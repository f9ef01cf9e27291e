"""The story reads as it was recorded; `python -m tests.golden.test_recorded_story` records it again."""

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
from tests.golden.recording import Recorder, written
from tests.golden.story import tell
from tests.persistence.dump import dump

FILES = Path(__file__).parent
BEGUN = datetime(2026, 1, 1, 12, tzinfo=UTC)


@contextmanager
def _told(folder: Path) -> Iterator[dict[str, Any]]:
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
            tell(story)
            rows = {
                name: [dict(zip(metadata.tables[name].c.keys(), row, strict=True)) for row in kept]
                for name, kept in dump(ledger.database).items()
            }
            yield {
                "answers.json": story.answers,
                "rows.json": story.steadied(rows),
            }


def test_the_story_reads_as_it_was_recorded(tmp_path: Path) -> None:
    with _told(tmp_path) as answer:
        for name, found in answer.items():
            assert json.loads(written(found)) == json.loads((FILES / name).read_text()), name


if __name__ == "__main__":
    with TemporaryDirectory() as folder, _told(Path(folder)) as answer:
        for name, found in answer.items():
            (FILES / name).write_text(written(found))
