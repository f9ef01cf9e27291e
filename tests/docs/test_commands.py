"""Every command on every page is run by a test, or stands here with the reason why not."""

from pathlib import Path

from tests.docs.markdown import ROOT, blocks
from tests.docs.test_operator_pages import BLOCKS as OPERATED

RUN_BY = {
    "how-to/arrange-budgets": "tests/docs/test_readme.py",
    "how-to/authorize-steps": "tests/docs/test_readme.py",
    "how-to/manage-as-code": "tests/docs/test_manage_as_code.py",
    "how-to/plan-a-training": "tests/docs/test_accounting_page.py",
    "how-to/send-alerts": "tests/docs/test_readme.py",
    "how-to/share-budgets": "tests/docs/test_readme.py",
    "how-to/use-workload-identity": "tests/docs/test_workload_page.py",
    "tutorial/first-budget": "tests/docs/test_readme.py",
    "tutorial/train-a-model": "tests/frameworks/test_guide.py",
}
"""Pages whose blocks a test of their own runs, all of them."""

CI = "CI and developers call these targets"
FORMULA = "it is a formula or a list, and no command"
CITUS = "it needs a cluster; tests/citus runs the same on one that `make citus` builds"
RELEASE = "it makes, or needs, a published release"
PACKAGES = "the tests run with these packages, from lock files"

NOT_RUN = {
    "B_j = epsilon - ln(1 - 1/a_j) + ln(delta_j a_j) / (a_j - 1)": FORMULA,
    "R'(a) = ln(1 - q + q e^(b R(a))) / b": FORMULA,
    "export EPSILON_LEDGER_DATABASE_URL=sqlite:////tmp/migration.db": "it would add a migration to the repository",
    "make format            format and mend what can be mended": CI,
    ".venv/bin/python -m pytest tests/ledger/admission/test_admission.py": "the tests run it, without this line",
    "pip install './sdk[flower]'": PACKAGES,
    'pip install "epsilon-ledger-client[dp-accounting]" jax-privacy': PACKAGES,
    "pip install './sdk[nvflare]'": PACKAGES,
    "pip install './sdk[opacus]'      # or './sdk[lightning]'": PACKAGES,
    'pip install "epsilon-ledger-client[mlflow]"': PACKAGES,
    'pip install "epsilon-ledger-client[transformers]" peft': PACKAGES,
    'pip install "epsilon-ledger[telemetry]"': PACKAGES,
    "CREATE EXTENSION citus;  -- on each node, in the database": CITUS,
    "EPSILON_LEDGER_DATABASE_URL=postgresql://ledger@db0.internal/ledger epsilon-ledger migrate": CITUS,
    "make dist": "tests/packaging/test_release.py builds a release by it",
    "git tag --sign v1.2.3 --message v1.2.3": RELEASE,
    "gh attestation verify epsilon_ledger-1.2.3-py3-none-any.whl --repo OWNER/epsilon-ledger": RELEASE,
    "docker buildx imagetools inspect python:3.13-slim-trixie": "needs a container engine and the image's registry",
    "export EPSILON_LEDGER_METRICS_TOKEN_FILE=/run/secrets/metrics-token": "they are settings, which tests/api sets",
}
"""By a block's first line: why no test runs it."""

OPERATED_PAGES = {block.page for block in OPERATED}
PAGES = sorted(path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md"))
OTHERS = [block for page in PAGES if page not in OPERATED_PAGES | RUN_BY.keys() for block in blocks(page)]


def test_block_without_a_test_has_its_reason() -> None:
    assert {block.first_line for block in OTHERS} == NOT_RUN.keys()
    for page, module in RUN_BY.items():
        assert blocks(page), page
        assert Path(page).name in (ROOT / module).read_text(), page
