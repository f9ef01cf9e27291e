"""The sample ledger with some of its runs, of each kind: `python -m tests.demo.few_runs serve --sample`."""

from unittest.mock import patch

from app import cli
from app.sample import hospital
from app.sample.hospital_data import SERIES

KEPT = {
    *("cardiology-registry/readmission/research", "stroke-registry/outcome-models", "stroke-registry/statistics"),
    *("staff-survey/burnout", "staff-survey/annual-report"),
}

if __name__ == "__main__":
    with patch.object(hospital, "SERIES", [each for each in SERIES if each.budget in KEPT]):
        cli.main()
