"""Every mutation still applies: its line stands once in its file, and its tests exist."""

from pathlib import Path

import pytest

from tests.mutation_cases import MUTATIONS
from tests.mutation_cases.case import Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[each.name for each in MUTATIONS])
def test_a_mutation_applies(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.line) == 1
    assert mutation.line != mutation.instead
    missing = [test for test in mutation.tests if not (ROOT / test.partition("::")[0]).exists()]
    assert missing == []
