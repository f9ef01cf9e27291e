"""The compose file, started by docker-compose."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml

from benchmarks.failover.load import Load
from tests.deploy.engine.daemon import Engine, process_status, run
from tests.deploy.engine.images import Images
from tests.deploy.engine.report import Report, wait_for
from tests.deploy.engine.world import PROBE, PUBLIC
from tests.packaging.dockerfile import ROOT

PROJECT: Final = "epsilon-ledger"
URL: Final = "http://127.0.0.1:8000"
STEPS_BETWEEN: Final = 60


class Composition:
    """The services of the compose file, from a copy of `deploy` with secrets of its own.

    Args:
        engine: that runs them.
        folder: of the copy.
        images: in place of those which the file names.
    """

    def __init__(self, engine: Engine, folder: Path, images: Images) -> None:
        self.engine = engine
        self.images = images
        self.folder = folder / "deploy"
        shutil.copytree(ROOT / "deploy", self.folder, ignore=shutil.ignore_patterns("secrets"))
        run([str(self.folder / "secrets.sh"), str(self.folder / "compose" / "secrets")])
        self.file = self.folder / "compose" / "compose.yaml"
        self.services: dict[str, Any] = yaml.safe_load(self.file.read_text())["services"]
        if run(["docker-compose", "version", "--short"]).stdout.startswith("1."):
            # It takes the project's name as an option only.
            self.file.write_text(re.sub(r"(?m)^name: .*\n", "", self.file.read_text()))
        other = {"services": {"database": {"image": images.database}, "proxy": {"image": images.proxy}}}
        self.other_images = self.file.with_name("images.yaml")
        self.other_images.write_text(json.dumps(other))

        # Compatibility: limits and replicas stand under `deploy`, which version 1 keeps for a swarm.
        files = ["--file", str(self.file), "--file", str(self.other_images)]
        self.command = ["docker-compose", "--compatibility", "--project-name", PROJECT, *files]
        self.environment = engine.environment | {"LEDGER_IMAGE": images.ledger, "COMPOSE": " ".join(self.command)}

    def run(self, *arguments: str) -> str:
        """Run a `docker-compose` command; return what it printed."""
        return run([*self.command, *arguments], environment=self.environment, folder=self.file.parent).stdout

    def back_up(self, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Run the script of the timer."""
        script = self.file.with_name("backup.sh")
        return run([str(script), str(folder)], environment=self.environment, check=False)

    def containers(self, service: str) -> list[str]:
        """List the containers of a service, also those that ended."""
        chosen = [f"label=com.docker.compose.{key}" for key in (f"project={PROJECT}", f"service={service}")]
        filters = [word for each in chosen for word in ("--filter", each)]
        return sorted(self.engine.run("ps", "--all", "--quiet", *filters).stdout.split())

    def health(self, service: str) -> list[str]:
        """Return the health of each container of a service."""
        states = [self.engine.inspect(each)["State"] for each in self.containers(service)]
        return [state["Health"]["Status"] if "Health" in state else state["Status"] for state in states]

    def ledger(self, *arguments: str) -> str:
        """Run `epsilon-ledger` in a replica, as the documentation shows."""
        return self.run("exec", "-T", "service", "epsilon-ledger", *arguments)

    def database_url(self) -> str:
        """The database, from the machine itself."""
        [container] = self.containers("database")
        [network] = self.engine.inspect(container)["NetworkSettings"]["Networks"].values()
        password = (self.folder / "compose" / "secrets" / "database-password").read_text().strip()
        return f"postgresql://ledger:{password}@{network['IPAddress']}:5432/ledger"

    def start(self) -> float:
        """Start everything; return the seconds until the proxy's health check passed."""
        began = time.monotonic()
        self.run("up", "--detach", "--no-build")
        wait_for(lambda: self.health("proxy") == ["healthy"], "the proxy does not become healthy")
        return time.monotonic() - began


def try_compose(engine: Engine, folder: Path, images: Images, report: Report) -> None:
    """Start the compose file, step runs, lose and restart parts, and compare."""
    report.title("compose")
    trial = Composition(engine, folder, images)
    took = trial.start()
    report.note("everything becomes healthy", f"{took:.1f} s after `up`")
    _check_states(trial, report)
    _check_confinement(trial, report)
    _check_secrets(trial, report)
    _check_networks(trial, report)
    _check_load(trial, report)
    _check_backup(trial, folder / "backups", report)
    trial.run("down", "--volumes")


def _check_states(trial: Composition, report: Report) -> None:
    [migration] = trial.containers("migration")
    report.check("the migration ended with 0", holds=trial.engine.inspect(migration)["State"]["ExitCode"] == 0)
    replicas = trial.health("service")
    report.check("two replicas are healthy", holds=replicas == ["healthy"] * 2, found=replicas)
    report.check("the database is healthy", holds=trial.health("database") == ["healthy"])
    links = re.findall(r"https?://\S+/sign-in/link#lnk_\S+", trial.run("logs", "--no-color", "service"))
    report.check("one sign-in link is printed", holds=len(links) == 1, found=len(links))
    another = trial.ledger("sign-in-link", "--org", "default")
    report.check("another one can be made", holds="/sign-in/link#lnk_" in another)
    started = {
        name: min(trial.engine.inspect(each)["State"]["StartedAt"] for each in trial.containers(name))
        for name in trial.services
    }
    order = sorted(started, key=lambda name: started[name])
    report.check("they start in their order", holds=order == list(trial.services), found=", ".join(order))


def _check_confinement(trial: Composition, report: Report) -> None:
    """What the kernel says of a container's first process, and what a shell in it may do."""
    for name, service in trial.services.items():
        if name == "migration":
            continue
        first = trial.containers(name)[0]
        known = trial.engine.inspect(first)
        found = process_status(known["State"]["Pid"])
        bounded = int(found["CapBnd"], 16).bit_count()
        allowed = len(service.get("cap_add", []))
        report.check(f"{name} has {allowed} capabilities", holds=bounded == allowed, found=bounded)
        confined = (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
        report.check(f"{name} gains no privileges, and has a filter of system calls", holds=confined)
        user = int(found["Uid"].split("\t")[1])
        report.check(f"{name} is an ordinary user", holds=user > 0, found=user)
        written = trial.engine.run("exec", first, "sh", "-c", "touch /usr/written", check=False)
        report.check(f"{name} writes nothing to its file system", holds=written.returncode != 0)
        limits = service["deploy"]["resources"]["limits"]
        memory = known["HostConfig"]["Memory"]
        stated = int(limits["memory"][:-1]) * {"m": 2**20, "g": 2**30}[limits["memory"][-1]]
        report.check(f"{name} has its limit of memory", holds=memory == stated, found=f"{memory >> 20} MiB")
        report.check(
            f"{name} has its limit of processors", holds=known["HostConfig"]["NanoCpus"] == float(limits["cpus"]) * 1e9
        )


def _check_secrets(trial: Composition, report: Report) -> None:
    folder = trial.folder / "compose" / "secrets"
    values = [max(file.read_text().splitlines(), key=len) for file in folder.iterdir()]
    for name, service in trial.services.items():
        if name == "migration":
            continue
        first = trial.containers(name)[0]
        there = trial.engine.run("exec", first, "sh", "-c", "ls /run/secrets 2>/dev/null || true").stdout.split()
        report.check(
            f"{name} has its secrets only", holds=sorted(there) == sorted(service.get("secrets", [])), found=there
        )
        shown = json.dumps(trial.engine.inspect(first)) + trial.engine.run("logs", first).stdout
        report.check(f"{name} shows no secret by `inspect` and in its log", holds=not any(v in shown for v in values))
    reading = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat"]
    codes = [run([*reading, str(file)], check=False).returncode for file in (trial.file, folder / "signing.pem")]
    report.check("another user of the machine reads the file, and no secret", holds=codes[0] == 0 != codes[1])


def _check_networks(trial: Composition, report: Report) -> None:
    address = re.findall(r"@(.*):5432", trial.database_url())[0]
    outside = ["run", "--rm", "--network", f"{PROJECT}_outside", trial.images.ledger, "python", "-c", PROBE]
    reached = trial.engine.run(*outside, address, "5432", check=False)
    report.check("the database is not reached from the outer network", holds=reached.returncode != 0)
    named = trial.engine.run(*outside, "proxy", "8000", check=False)
    report.check("the proxy is reached from there", holds=named.returncode == 0, found=named.stderr[-80:])
    for name in ("database", "service"):
        goes_out = _reaches(trial, name, PUBLIC, 443)
        report.check(
            f"the {name} {'reaches' if name == 'service' else 'does not reach'} the world",
            holds=goes_out == (name == "service"),
        )
    ports = [name for name in trial.services for each in trial.containers(name) if _published(trial.engine, each)]
    report.check("only the proxy has a port on the machine", holds=ports == ["proxy"], found=ports)


def _reaches(trial: Composition, service: str, address: str, port: int) -> bool:
    """Try a connection in the network of a service's container."""
    process = trial.engine.inspect(trial.containers(service)[0])["State"]["Pid"]
    probe = [sys.executable, "-c", PROBE, address, str(port)]
    return run(["nsenter", f"--target={process}", "--net", *probe], check=False).returncode == 0


def _published(engine: Engine, container: str) -> dict[str, Any]:
    ports: dict[str, Any] = engine.inspect(container)["HostConfig"]["PortBindings"] or {}
    return ports


def _keys(trial: Composition) -> dict[str, str]:
    return {
        role: json.loads(trial.ledger("keys", "create", "--org", "default", "--role", role, "--json"))["key"]
        for role in ("admin", "trainer")
    }


def _restart(trial: Composition, report: Report) -> None:
    """Stop everything, remove the containers, and start anew, without load: it may take longer than trainers wait."""
    trial.run("stop")
    codes = {
        name: [trial.engine.inspect(each)["State"]["ExitCode"] for each in trial.containers(name)]
        for name in trial.services
    }
    report.check(
        "everything ends with 0 when it is stopped", holds=not any(any(c) for c in codes.values()), found=codes
    )
    trial.run("down")
    took = trial.start()
    report.note("`down` and `up` bring it back", f"{took:.1f} s")


def _check_load(trial: Composition, report: Report) -> None:
    """Step runs through the proxy while replicas are killed and restarted, and after everything was started anew."""
    keys = _keys(trial)
    load = Load(URL, keys, "trial")
    with load.at_work():
        load.await_answers(STEPS_BETWEEN)
        first, second = trial.containers("service")
        began = time.monotonic()
        _kill(trial.engine, first)
        load.await_answers(STEPS_BETWEEN)
        wait_for(lambda: trial.health("service") == ["healthy"] * 2, "a killed replica does not come back")
        report.note("a killed replica comes back", f"longest pause {load.pause(began):.1f} s")
        began = time.monotonic()
        trial.engine.run("restart", "--time", "60", second)
        stopped = time.monotonic() - began
        report.check("a replica stops in time", holds=stopped < 60, found=f"stopped and started in {stopped:.1f} s")
        wait_for(lambda: trial.health("service") == ["healthy"] * 2, "a restarted replica does not come back")
    _restart(trial, report)
    later = Load(URL, keys, "later")
    with later.at_work():
        later.await_answers(STEPS_BETWEEN)
    tally = load.tally(trial.database_url())
    report.check(
        "acknowledged steps are in the ledger, once",
        holds=(tally.lost, tally.doubled) == (0, 0),
        found=f"{tally.acknowledged} steps, lost {tally.lost}, doubled {tally.doubled}",
    )
    report.check("no budget is exceeded", holds=load.over_budget() == 0)
    report.check(
        "the ledger agrees with the clients, and verifies",
        holds=not tally.problems,
        found="; ".join(tally.problems[:3]),
    )
    said = trial.ledger("verify")
    report.note("`epsilon-ledger verify` in a replica ends with 0", said.strip().splitlines()[-1])
    dead = [
        name
        for name in trial.services
        for each in trial.containers(name)
        if trial.engine.inspect(each)["State"]["OOMKilled"]
    ]
    report.check("none ran out of memory", holds=not dead, found=dead)
    httpx2.get(f"{URL}/readyz", trust_env=False).raise_for_status()


def _check_backup(trial: Composition, folder: Path, report: Report) -> None:
    done = trial.back_up(folder)
    said = (done.stdout + done.stderr).strip().splitlines()[-1:]
    report.check("a backup is restored, and agrees", holds=done.returncode == 0, found=said)
    kept = [(file.name[:7], file.stat().st_size > 0) for file in folder.iterdir()]
    report.check("it is kept", holds=kept == [("ledger-", True)] and folder.stat().st_mode & 0o077 == 0)
    [database] = trial.containers("database")
    forged = "UPDATE audit_entries SET entry_hash = decode('00', 'hex') || substr(entry_hash, 2)"
    psql = ["psql", "--username=postgres", "--dbname=ledger_scratch", "--command"]
    trial.engine.run("exec", database, *psql, forged)
    verify = 'export PGPASSWORD="$(cat /run/secrets/database-password)" && epsilon-ledger backup verify "$0"'
    url = "postgresql://ledger@database:5432/ledger_scratch"
    damaged = trial.engine.run("exec", trial.containers("service")[0], "sh", "-c", verify, url, check=False)
    report.check("a damaged one is not accepted", holds=damaged.returncode == 1, found=damaged.returncode)


def _kill(engine: Engine, container: str) -> None:
    run(["kill", "-9", str(engine.inspect(container)["State"]["Pid"])])
