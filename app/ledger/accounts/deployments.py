"""What the public registry of deployments asks for and only people know: metadata of accounts, by name.

Names, choices and tiers are those of the registry's schema (github.com/opendp/deployments-registry-data).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.ledger.times import parse_day

MAX_DEPLOYMENT_VALUE: Final = 2000
"""Characters of a value."""


@dataclass(frozen=True, slots=True)
class DeploymentField:
    """A field of the registry's entries.

    Args:
        part: the part of an entry that it belongs to.
        words: what it asks for.
        tier: from which tier of entries on it is expected.
        required: whether an entry is refused without it.
        choices: the values that it may have; none: any.
        is_list: whether a value is a list, separated by semicolons.
        is_day: whether a value is a day, as 2026-12-03.
    """

    part: str
    words: str
    tier: int
    required: bool = False
    choices: tuple[str, ...] = ()
    is_list: bool = False
    is_day: bool = False

    def check(self, value: str) -> None:
        """Raise ValueError if a value may not stand here."""
        if self.choices and value not in self.choices:
            raise ValueError(f"choose one of: {'; '.join(self.choices)}")
        if self.is_list and not all(self.items(value)):
            raise ValueError("write names, separated by semicolons")
        if self.is_day:
            parse_day(value)

    def items(self, value: str) -> list[str]:
        """Split the value of a list."""
        return [each.strip() for each in value.split(";")]


_TYPES: Final = (
    *("Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API"),
    "SQL queries",
)
_SECTORS: Final = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
_TUNING: Final = "How the data were prepared and parameters were tuned before, and whether that was charged."

DEPLOYMENT_FIELDS: Final[Mapping[str, DeploymentField]] = {
    "data_curators": DeploymentField("basic", "Who publishes the data product.", 1, required=True, is_list=True),
    "intended_use": DeploymentField("basic", "What the data product is for.", 1, required=True),
    "data_product_type": DeploymentField("basic", "Kind of the data product.", 1, required=True, choices=_TYPES),
    "data_product_region": DeploymentField("basic", "Region of the data, or whose law applies.", 1, required=True),
    "publication_date": DeploymentField("basic", "Day of the first publication.", 1, required=True, is_day=True),
    "data_product_sector": DeploymentField("basic", "Sector of the data product.", 1, choices=_SECTORS),
    "data_domain": DeploymentField("dp_variant", "Which data sets are possible.", 3),
    "unprotected_quantities": DeploymentField("dp_variant", "What is published without protection.", 3),
    "model_name": DeploymentField(
        "deployment_model", "Who sees raw data.", 2, choices=("Local", "Central", "Shuffle", "Federated", "Varies")
    ),
    "actors": DeploymentField("deployment_model", "Who takes part, and who trusts whom.", 3),
    "release_type": DeploymentField(
        "deployment_model", "How often the data product is published.", 2, choices=("One release", "Many releases")
    ),
    "data_source_type": DeploymentField(
        "deployment_model", "Whether new data come in.", 2, choices=("Static", "Dynamic")
    ),
    "access_type": DeploymentField(
        "deployment_model", "Whether analysts may query the data.", 2, choices=("Interactive", "Non-interactive")
    ),
    "post_processing": DeploymentField("accounting", "What is done to results afterwards.", 3),
    "preprocessing_and_hyperparameter_tuning": DeploymentField("implementation", _TUNING, 3),
    "justification": DeploymentField("implementation", "How and why these choices were made.", 3),
    "sources": DeploymentField("administrative", "Where the deployment is described.", 1),
    "registry_authors": DeploymentField("administrative", "Who has filled in the entry.", 1, is_list=True),
}
