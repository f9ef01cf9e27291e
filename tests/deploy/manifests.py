"""Kubernetes manifests as the tests ask about them."""

from typing import Any

import yaml

from tests.packaging.dockerfile import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
Document = dict[str, Any]


def documents(text: str) -> list[Document]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(text) if document]
