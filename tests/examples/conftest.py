"""One service for all examples: each makes accounts of its own."""

from collections.abc import Iterator

import pytest

from tests.servers import LiveServer


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()
