"""A service that is told to stop while its application loads: `python -m tests.service.early_stop_server serve`."""

import os
import signal
import time
from multiprocessing import parent_process

from uvicorn import Config

from app import cli
from app.connections import BoundedConfig

SECONDS = 3.0
"""So long a worker goes on loading; whoever starts the workers passes the signal on within half a second."""

_load = BoundedConfig.load


def _load_and_be_stopped(config: Config) -> None:
    _load(config)
    parent = parent_process()
    os.kill(os.getpid() if parent is None else os.getppid(), signal.SIGTERM)
    if parent is not None:
        until = time.monotonic() + SECONDS
        while (left := until - time.monotonic()) > 0:
            time.sleep(left)


BoundedConfig.load = _load_and_be_stopped  # type: ignore[method-assign,assignment] # also in the workers, which import this anew

if __name__ == "__main__":
    cli.main()
