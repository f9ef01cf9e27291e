"""What tests of deliveries share."""

from collections.abc import Iterator

import pytest

from tests.service.endpoint import Endpoint, receiving


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with receiving() as opened:
        yield opened
