"""The compose file: valid, locked up, without secrets, and true to the image and to the service."""

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for
from sqlalchemy import make_url

from app.configuration.settings import PREFIX, Settings
from app.service.signing.signatures import signer_of
from app.version import VERSION
from tests.deploy.manifests import KUBERNETES, unknown_settings
from tests.packaging.dockerfile import ROOT, only, stages

FOLDER = ROOT / "deploy" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
PROXY = (FOLDER / "haproxy.cfg").read_text()
OURS = ("migration", "service")
FINAL = stages()[-1]


def test_file_is_valid_by_the_schema_of_compose_and_an_unknown_member_is_not() -> None:
    vendored = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text())
    validator = validator_for(schema)(schema)
    validator.validate(COMPOSE)
    assert not validator.is_valid(COMPOSE | {"services": {"service": {"imagine": "x"}}})


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
    assert all("test" in SERVICES[name]["healthcheck"] for name in ("database", "service"))


def test_two_replicas_are_reached_through_the_one_port_of_the_proxy() -> None:
    assert SERVICES["service"]["deploy"]["replicas"] == 2
    assert [name for name, each in SERVICES.items() if "ports" in each] == ["proxy"]
    [port] = SERVICES["proxy"]["ports"]
    assert port.startswith("${LEDGER_ADDRESS:-127.0.0.1}:")
    inside = only(FINAL, "EXPOSE").arguments
    assert SERVICES["service"]["command"] == only(FINAL, "CMD").command
    assert SERVICES["service"]["healthcheck"]["test"] == ["CMD", *only(FINAL, "HEALTHCHECK").command]
    assert re.search(rf"(?m)^ +server-template replica 1-\d+ service:{inside}$", PROXY)
    assert re.search(rf"(?m)^ +bind :{port.split(':')[-1]}$", PROXY)
    assert set(re.findall(r"GET (/\S+)", PROXY)) | set(re.findall(r"127\.0\.0\.1:8000(/\w+)", TEXT)) == {"/readyz"}


def test_proxy_has_the_timeouts_of_the_service_and_alone_names_the_caller() -> None:
    settings = Settings()
    assert re.findall(r"timeout http-request (\d+)s", PROXY) == [f"{settings.request_head_seconds:g}"]
    [connections] = re.findall(r"default-server maxconn (\d+)", PROXY)
    assert int(connections) < settings.max_connections
    assert PROXY.index("del-header X-Forwarded-For") < PROXY.index("option forwardfor")
    assert SERVICES["service"]["environment"]["FORWARDED_ALLOW_IPS"] == "*"


@pytest.mark.parametrize("name", OURS)
def test_variables_are_settings_whose_files_are_mounted(name: str) -> None:
    service = SERVICES[name]
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


def test_database_is_reached_from_inside_only_and_keeps_its_data() -> None:
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert SERVICES["database"]["networks"] == SERVICES["migration"]["networks"] == ["inside"]
    [(volume, folder)] = [mount.split(":") for mount in SERVICES["database"]["volumes"] if not mount.startswith(".")]
    assert volume in COMPOSE["volumes"]
    assert SERVICES["database"]["environment"]["PGDATA"].startswith(folder)


def test_images_name_a_version_and_settings_are_explained_with_their_defaults() -> None:
    images = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", each["image"]) for name, each in SERVICES.items()}
    assert {images[name] for name in OURS} == {f"epsilon-ledger:{VERSION}"}
    assert images["database"] in (KUBERNETES / "trial" / "postgres.yaml").read_text()
    assert (FOLDER / SERVICES["service"]["build"]["context"]).resolve() == ROOT
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))
    assert len(used) == len(set(re.findall(r"\$\{?(\w+)", TEXT)))
    assert dict(re.findall(r"(?m)^(\w+)=(.*)$", (FOLDER / ".env.example").read_text())) == used


def test_mounted_files_exist_and_secrets_are_made_once_outside_of_the_repository(tmp_path: Path) -> None:
    for mount in SERVICES["database"]["volumes"] + SERVICES["proxy"]["volumes"]:
        source = mount.split(":")[0]
        assert not source.startswith(".") or (FOLDER / source).is_file()
    make = [ROOT / "deploy" / "secrets.sh", tmp_path / "secrets"]
    subprocess.run(make, check=True, capture_output=True)
    kept = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert {each["file"] for each in COMPOSE["secrets"].values()} == {f"secrets/{name}" for name in kept}
    assert all(len(text.strip()) >= 48 for text in kept.values())
    assert signer_of(str(tmp_path / "secrets" / "signing.pem")) is not None
    subprocess.run(make, check=True, capture_output=True)
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == kept
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert "deploy/**/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "password:" not in TEXT.lower().replace("-password:", "")
