"""Issuers of workloads' tokens in threads, and files of rules for them."""

import json
import time
from pathlib import Path
from typing import Any, Final

from tests.identity_provider import IdentityProvider

AUDIENCE: Final = "epsilon-ledger"

POD: Final = "system:serviceaccount:icu:trainer"

PLACE: Final[dict[str, Any]] = {"organisation": "hospital", "scope": "mimic/icu-team"}

RULES: Final[list[dict[str, Any]]] = [
    {"claims": {"sub": POD}} | PLACE,
    {"claims": {"kubernetes.io/namespace": "sweeps"}, "single_use": False} | PLACE,
    {
        "claims": {"sub": "repo:hospital/policies:*", "ref": "refs/heads/main"},
        "organisation": "hospital",
        "role": "budget_admin",
    },
    {"claims": {"sub": "system:serviceaccount:icu:office"}, "organisation": "hospital", "role": "privacy_officer"},
    {"claims": {"sub": "system:serviceaccount:icu:lost"}, "organisation": "hospital", "scope": "mimic/nowhere"},
    {"claims": {"sub": "system:serviceaccount:icu:stranger"}, "organisation": "nobody's", "scope": "mimic"},
]


def issuer_of(provider: IdentityProvider, name: str = "cluster", **changed: object) -> dict[str, object]:
    """An issuer of a file, with rules for pods and CI jobs."""
    return {"name": name, "issuer": provider.issuer, "audience": AUDIENCE, "rules": RULES} | changed


def issuers_file(folder: Path, *issuers: dict[str, object]) -> str:
    """A file with these issuers."""
    path = folder / "issuers.yaml"
    path.write_text(json.dumps({"issuers": issuers}), encoding="utf-8")
    return str(path)


def workload_token(
    provider: IdentityProvider, algorithm: str = "RS256", /, *, header: object = None, **changed: object
) -> str:
    """A token as a cluster signs one for a pod: without `typ`, for an hour."""
    head = {"typ": None} | (header if isinstance(header, dict) else {})
    claims: dict[str, object] = {"aud": [AUDIENCE], "sub": POD, "groups": None, "email": None}
    claims |= {"exp": int(time.time()) + 3600}
    return provider.token(algorithm, 0, head, **(claims | changed))
