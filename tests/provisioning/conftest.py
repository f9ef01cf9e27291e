"""One application for a module, and a new organisation of it for a test."""

from collections.abc import Callable, Iterator

import pytest

from tests.provisioning.organisation import Organisation, application


@pytest.fixture(scope="module")
def new_organisation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Organisation]]:
    with application(tmp_path_factory.mktemp("application")) as new:
        yield new


@pytest.fixture
def organisation(new_organisation: Callable[[], Organisation]) -> Organisation:
    return new_organisation()
