"""Kubernetes manifests as the tests ask about them."""

from typing import Any

import yaml

from app.configuration.settings import FOREIGN_VARIABLES, PREFIX, known_variables
from tests.packaging.dockerfile import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
Document = dict[str, Any]


def documents(text: str) -> list[Document]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(text) if document]


def unknown_settings(names: list[str]) -> list[str]:
    """Variables that are meant for the service and that nothing reads."""
    return [name for name in names if name.startswith(PREFIX) and name not in {*known_variables(), *FOREIGN_VARIABLES}]
