"""The image in one container, with its database in a volume: as the documentation shows it."""

import json
import re
import time
from pathlib import Path
from typing import Final

import httpx2

from benchmarks.failover.load import Load
from tests.deploy.engine.daemon import Engine, process_status
from tests.deploy.engine.images import Images
from tests.deploy.engine.report import Report, wait_for

NAME: Final = "ledger"
VOLUME: Final = "epsilon-ledger"
PORT: Final = 8000
URL: Final = f"http://127.0.0.1:{PORT}"
STEPS: Final = 60


def try_container(engine: Engine, folder: Path, images: Images, report: Report) -> None:
    """Start the image, step runs, stop it, and let another container go on with its volume."""
    del folder
    report.title("one container")
    first = _start(engine, images)
    report.note("it becomes ready", f"{first:.2f} s with a new database")
    links = re.findall(r"https?://\S+/sign-in/link#lnk_\S+", engine.run("logs", NAME).stdout)
    report.check("one sign-in link is printed", holds=len(links) == 1, found=len(links))
    process = engine.inspect(NAME)["State"]["Pid"]
    report.note("it holds memory", process_status(process)["VmRSS"].strip())
    report.check("it is an ordinary user", holds=process_status(process)["Uid"].split("\t")[1] == "10001")
    wait_for(lambda: engine.inspect(NAME)["State"]["Health"]["Status"] == "healthy", "it does not become healthy")
    report.note("its own health check passes")
    keys = {
        role: json.loads(_ledger(engine, "keys", "create", "--org", "default", "--role", role, "--json"))["key"]
        for role in ("admin", "trainer")
    }
    load = Load(URL, keys, "trial")
    with load.at_work():
        load.await_answers(STEPS)
        began = time.monotonic()
        engine.run("stop", NAME)
        code = engine.inspect(NAME)["State"]["ExitCode"]
        report.check("it stops by itself", holds=code == 0, found=f"{time.monotonic() - began:.1f} s, {code}")
        engine.run("rm", NAME)
        later = _start(engine, images)
        report.note("another one goes on with its volume", f"ready after {later:.2f} s")
        load.await_answers(STEPS)
    said = _ledger(engine, "verify")
    report.note("`epsilon-ledger verify` ends with 0", said.strip().splitlines()[-1])
    engine.run("stop", NAME)
    volume = json.loads(engine.run("volume", "inspect", VOLUME).stdout)[0]["Mountpoint"]
    tally = load.tally(f"sqlite:///{volume}/epsilon-ledger.db")
    found = f"{tally.acknowledged} steps, lost {tally.lost}, doubled {tally.doubled}"
    report.check("acknowledged steps are in the ledger, once", holds=(tally.lost, tally.doubled) == (0, 0), found=found)
    report.check("the ledger agrees with the clients", holds=not tally.problems, found="; ".join(tally.problems[:3]))


def _start(engine: Engine, images: Images) -> float:
    """Start a container; return the seconds until it was ready."""
    began = time.monotonic()
    where = ["--publish", f"127.0.0.1:{PORT}:{PORT}", "--volume", f"{VOLUME}:/data"]
    engine.run("run", "--detach", "--name", NAME, *where, images.ledger)
    while not _ready():
        if time.monotonic() - began > 60:
            raise TimeoutError(engine.run("logs", NAME).stderr)
        time.sleep(0.02)
    return time.monotonic() - began


def _ready() -> bool:
    try:
        return httpx2.get(f"{URL}/readyz", timeout=2, trust_env=False).is_success
    except httpx2.TransportError:
        return False


def _ledger(engine: Engine, *arguments: str) -> str:
    return engine.run("exec", NAME, "epsilon-ledger", *arguments).stdout
