"""The page on workload identity: its rules are valid, its manifests too, and its request gets a key."""

import json
import os
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.configuration.workload_issuers import IssuerSettings, RuleSettings, read_workload_issuers
from app.ledger.permissions import Role
from epsilon_ledger import LedgerClient, Limit
from tests.conftest import LiveServer
from tests.docs.markdown import ROOT, fences
from tests.identity_provider import IdentityProvider
from tests.programs import run
from tests.workloads import workload_token

PAGE = (ROOT / "docs" / "how-to" / "use-workload-identity.md").read_text()
BLOCKS = fences(PAGE)
RULES, JOB, _, ACTION = [block.text for block in BLOCKS if block.language == "yaml"]
[REQUEST] = [block.text for block in BLOCKS if block.language == "bash"]
[SHOWN] = [block.text for block in BLOCKS if block.language == "text"]


def test_rules_on_the_page_are_valid(tmp_path: Path) -> None:
    file = tmp_path / "issuers.yaml"
    file.write_text(RULES)
    cluster, github, gitlab = read_workload_issuers(file)
    assert [len(each.rules) for each in (cluster, github, gitlab)] == [2, 2, 1]
    assert [each.single_use for each in cluster.rules] == [True, False]
    assert (github.single_use_tokens, github.rules[1].role) == (True, Role.BUDGET_ADMIN)
    assert cluster.rules[0].matched({"sub": "system:serviceaccount:icu:trainer"}) is not None
    assert github.rules[0].matched({"sub": "repo:hospital/models-2:x", "ref": "refs/heads/main"}) is None


@pytest.mark.parametrize(("kind", "model"), [("an issuer", IssuerSettings), ("a rule", RuleSettings)])
def test_tables_have_every_field(kind: str, model: type[IssuerSettings | RuleSettings]) -> None:
    table = PAGE.partition(f"| Field of {kind} |")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed | ({"rules"} if kind == "an issuer" else set()) == set(model.model_fields)


def test_job_is_valid_and_mounts_the_token_that_it_names() -> None:
    job: dict[str, Any] = yaml.safe_load(JOB)
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    pod = job["spec"]["template"]["spec"]
    [container], [volume] = pod["containers"], pod["volumes"]
    [token] = [source["serviceAccountToken"] for source in volume["projected"]["sources"]]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["EPSILON_LEDGER_TOKEN_FILE"] == f"{container['volumeMounts'][0]['mountPath']}/{token['path']}"
    rules = yaml.safe_load(RULES)["issuers"][0]
    subject = f"system:serviceaccount:{job['metadata']['namespace']}:{pod['serviceAccountName']}"
    assert (token["audience"], subject) == (rules["audience"], rules["rules"][0]["claims"]["sub"])


def test_workflow_may_ask_for_tokens() -> None:
    workflow: dict[Any, Any] = yaml.safe_load(ACTION)
    assert workflow["permissions"]["id-token"] == "write"
    assert f'github_actions_token("{yaml.safe_load(RULES)["issuers"][1]["audience"]}")' in PAGE


def test_request_on_the_page_gets_a_single_use_key(
    live_server: LiveServer, cluster: IdentityProvider, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(workload_token(cluster))
    with LedgerClient(live_server.url, live_server.key("admin")) as admin:
        limit = Limit(3.0, 1e-5)
        admin.create_population("mimic", privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=limit)
        admin.create_budget("icu-team", parent="mimic", limit=limit)
    typed = REQUEST.replace("/var/run/secrets/epsilon-ledger/token", str(token)).replace("curl", "curl -sS")
    environment = os.environ | {"LEDGER": live_server.url}
    said = run(["bash", "-uc", typed], env=environment).stdout
    answer = json.loads(said)
    assert SHOWN.strip() in said
    with LedgerClient(live_server.url, answer["access_token"]) as job:
        assert job.get_api_key(answer["key"]["id"]).single_use
