"""The compose file: valid, locked up, without secrets, and true to the image and to the service."""

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for
from sqlalchemy import make_url

from app.service.signatures import signer_of
from app.settings import PREFIX, Settings
from tests.deploy.container_commands import commands_in, require_command, unknown_settings
from tests.deploy.manifests import KUBERNETES
from tests.packaging.dockerfile import ROOT, only, stages

FOLDER = ROOT / "deploy" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("migration", "service")


def _schema() -> dict[str, Any]:
    vendored = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema: dict[str, Any] = json.loads(vendored.read_text())
    return schema


def _problems(compose: dict[str, Any]) -> list[str]:
    schema = _schema()
    return [error.message for error in validator_for(schema)(schema).iter_errors(compose)]


def test_it_is_valid_by_the_schema_of_the_compose_specification() -> None:
    assert _problems(COMPOSE) == []
    assert _problems(COMPOSE | {"services": {"service": {"imagine": "x"}}}) != []


def test_services_start_in_the_order_in_which_they_need_each_other() -> None:
    needed = {
        name: {k: v["condition"] for k, v in each.get("depends_on", {}).items()} for name, each in SERVICES.items()
    }
    assert needed == {
        "database": {},
        "migration": {"database": "service_healthy"},
        "service": {"database": "service_healthy", "migration": "service_completed_successfully"},
        "proxy": {"service": "service_healthy"},
    }
    waited_for = {name for each in needed.values() for name, how in each.items() if how == "service_healthy"}
    assert all("test" in SERVICES[name]["healthcheck"] for name in waited_for)


def test_two_replicas_are_reached_through_the_one_port_of_the_proxy() -> None:
    assert SERVICES["service"]["deploy"]["replicas"] == 2
    assert [name for name, each in SERVICES.items() if "ports" in each] == ["proxy"]
    [port] = SERVICES["proxy"]["ports"]
    assert port.startswith("${LEDGER_ADDRESS:-127.0.0.1}:")
    proxy = (FOLDER / "haproxy.cfg").read_text()
    *_, final = stages()
    inside = only(final, "EXPOSE").arguments
    assert SERVICES["service"]["command"] == only(final, "CMD").command
    assert re.search(rf"(?m)^ +server-template replica 1-\d+ service:{inside}$", proxy)
    assert re.search(rf"(?m)^ +bind :{port.split(':')[-1]}$", proxy)
    answered = json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"]
    asked = set(re.findall(r"GET (/\S+)", proxy)) | set(re.findall(r"127\.0\.0\.1:8000(/\w+)", TEXT))
    assert asked == {"/readyz"} <= answered.keys()


def test_the_proxy_waits_as_long_as_the_service_and_gives_it_no_more_than_it_takes() -> None:
    proxy, settings = (FOLDER / "haproxy.cfg").read_text(), Settings()
    assert re.findall(r"timeout http-request (\d+)s", proxy) == [f"{settings.request_head_seconds:g}"]
    [connections] = re.findall(r"default-server maxconn (\d+)", proxy)
    assert int(connections) < settings.max_connections


def test_who_asked_is_said_by_the_proxy_alone() -> None:
    proxy = (FOLDER / "haproxy.cfg").read_text()
    assert proxy.index("del-header X-Forwarded-For") < proxy.index("option forwardfor")
    assert SERVICES["service"]["environment"]["FORWARDED_ALLOW_IPS"] == "*"
    assert "ports" not in SERVICES["service"]


def test_the_health_check_is_that_of_the_image() -> None:
    *_, final = stages()
    assert SERVICES["service"]["healthcheck"]["test"] == ["CMD", *only(final, "HEALTHCHECK").command]


@pytest.mark.parametrize("name", OURS)
def test_commands_and_variables_are_those_of_the_service(name: str) -> None:
    service = SERVICES[name]
    require_command(service["command"])
    assert unknown_settings(list(service["environment"])) == []
    given = {key.removeprefix(PREFIX).lower(): value for key, value in service["environment"].items() if PREFIX in key}
    chosen = Settings.model_validate(given)
    mounted = {f"/run/secrets/{secret}" for secret in service["secrets"]}
    assert {chosen.database_password_file, chosen.signing_key_file} - {""} == mounted
    assert make_url(chosen.database_url).host in SERVICES
    assert not make_url(chosen.database_url).password


def test_every_service_is_locked_up_has_limits_and_comes_back() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
        assert service["restart"] == ("on-failure:5" if name == "migration" else "unless-stopped")
        assert not service.get("privileged")
    assert all("/tmp" in SERVICES[name]["tmpfs"] for name in (*OURS, "database"))  # noqa: S108 - in the containers


def test_the_database_is_reached_from_inside_only_and_keeps_its_data() -> None:
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert SERVICES["database"]["networks"] == SERVICES["migration"]["networks"] == ["inside"]
    [(volume, folder)] = [mount.split(":") for mount in SERVICES["database"]["volumes"] if not mount.startswith(".")]
    assert volume in COMPOSE["volumes"]
    assert SERVICES["database"]["environment"]["PGDATA"].startswith(folder)


def test_images_name_a_version() -> None:
    images = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", each["image"]) for name, each in SERVICES.items()}
    version = re.search(r'(?m)^version = "(.*)"$', (ROOT / "pyproject.toml").read_text())
    assert version
    assert {images[name] for name in OURS} == {f"epsilon-ledger:{version[1]}"}
    assert re.fullmatch(r"postgres:\d+-\w+@sha256:\w+", images["database"])
    assert re.fullmatch(r"haproxy:\d+\.\d+-\w+@sha256:\w+", images["proxy"])
    assert images["database"] in (KUBERNETES / "trial" / "postgres.yaml").read_text()
    assert (FOLDER / SERVICES["service"]["build"]["context"]).resolve() == ROOT


def test_what_can_be_set_is_explained_with_its_default() -> None:
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))
    assert len(used) == len(set(re.findall(r"\$\{?(\w+)", TEXT)))
    shown = dict(re.findall(r"(?m)^(\w+)=(.*)$", (FOLDER / ".env.example").read_text()))
    assert shown == used


def test_files_that_are_mounted_exist_and_secrets_are_made_once(tmp_path: Path) -> None:
    for mount in SERVICES["database"]["volumes"] + SERVICES["proxy"]["volumes"]:
        source = mount.split(":")[0]
        assert not source.startswith(".") or (FOLDER / source).is_file()
    made = tmp_path / "secrets"
    subprocess.run([ROOT / "deploy" / "secrets.sh", made], check=True, capture_output=True)
    kept = {path.name: path.read_text() for path in made.iterdir()}
    assert {
        Path(each["file"]).name: Path(each["file"]).parent.name for each in COMPOSE["secrets"].values()
    } == dict.fromkeys(kept, "secrets")
    assert all(len(text.strip()) >= 48 for text in kept.values())
    assert signer_of(str(made / "signing.pem")) is not None
    subprocess.run([ROOT / "deploy" / "secrets.sh", made], check=True, capture_output=True)
    assert {path.name: path.read_text() for path in made.iterdir()} == kept
    assert made.stat().st_mode & 0o777 == 0o700


def test_no_secret_is_kept_in_the_repository() -> None:
    assert "deploy/**/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "password:" not in TEXT.lower().replace("-password:", "")


def test_backups_are_made_of_the_services_that_there_are() -> None:
    script = (FOLDER / "backup.sh").read_text()
    assert set(re.findall(r"exec -T (\w+)", script)) == {"database", "service"}
    url = make_url(COMPOSE["services"]["service"]["environment"]["EPSILON_LEDGER_DATABASE_URL"])
    assert f"--format=custom {url.database} >" in script
    assert f"postgresql://{url.username}@{url.host}:{url.port}/{url.database}_scratch" in script
    for file in re.findall(r"/run/secrets/([\w.-]+)", script):
        assert file in SERVICES["service"]["secrets"]
    [command] = commands_in(script)
    require_command(command)


def test_a_timer_makes_backups_each_week() -> None:
    service, timer = ((FOLDER / f"epsilon-ledger-backup.{kind}").read_text() for kind in ("service", "timer"))
    [called] = re.findall(r"(?m)^ExecStart=/opt/epsilon-ledger/(\S+) (\S+)$", service)
    assert (ROOT / called[0]).stat().st_mode & 0o111
    assert re.search(r"(?m)^OnCalendar=Sun \d\d:\d\d$", timer)
    page = (ROOT / "docs" / "operations" / "deployment.md").read_text()
    assert " ".join(called) in page
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze, which reads units")
    verify = ["systemd-analyze", "verify", "--man=no", str(FOLDER / "epsilon-ledger-backup.timer")]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    problems = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert not [line for line in problems if "epsilon-ledger" in line]
