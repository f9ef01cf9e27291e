"""Audit events, decisions, verifications and checkpoints."""

from datetime import datetime
from typing import Literal

from epsilon_ledger._wire.audit_models import AuditEvent, Decision, DecisionOutcome, Verification
from epsilon_ledger._wire.members import wire_timestamp
from epsilon_ledger._wire.references import find_run_id
from epsilon_ledger._wire.requests import Call, Listing, get, path, post
from epsilon_ledger._wire.signatures import Checkpoint, SigningKey


def list_audit_events(
    *,
    action: str | None = None,
    actor: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    order: Literal["newest", "oldest"] = "newest",
    page_size: int = 100,
) -> Listing[AuditEvent]:
    """List the audit log of the organisation.

    Args:
        action: only this action, "budget.created" for instance; "budget.*" matches the prefix.
        actor: only events of this actor.
        subject: id of the affected object.
        since: timezone-aware; from this time on.
        until: timezone-aware; before this time.
        order: "oldest" reads the log forward.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed; `to_pandas` makes a data frame of the rest.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    query = {
        "action": action,
        "actor": actor,
        "subject": subject,
        "since": wire_timestamp("since", since),
        "until": wire_timestamp("until", until),
        "order": order,
    }
    return Listing("v1/audit-events", query, AuditEvent, page_size)


def list_decisions(
    *,
    run: str | None = None,
    account: str | None = None,
    decision: DecisionOutcome | None = None,
    actor: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    page_size: int = 100,
) -> Listing[Decision]:
    """List the decisions on steps, newest first.

    Args:
        run: only those on this run: its id, or its path if no other run has the same.
        account: only those on runs under this account, an id or a path.
        decision: only those with this outcome.
        actor: only those on requests of this actor.
        since: timezone-aware; from this time on.
        until: timezone-aware; before this time.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed; `to_pandas` makes a data frame of the rest.

    Raises:
        LedgerError: while iterating: the run or the account does not exist, or no response arrived.
    """
    query = {
        "account": account,
        "decision": decision,
        "actor": actor,
        "since": wire_timestamp("since", since),
        "until": wire_timestamp("until", until),
    }
    references = {} if run is None else {"run": lambda: find_run_id(run)}
    return Listing("v1/decisions", query, Decision, page_size, references)


def create_verification() -> Call[Verification]:
    """Verify the ledger: recompute every account of the organisation from its charges.

    An account whose balance is not proven is quarantined. The time grows with the number of charges: give the client a
    `timeout` to match.

    Returns:
        What was found.

    Raises:
        LedgerError: no response arrived.
    """
    return Call(post("v1/verifications", {}), Verification)


def list_verifications(*, page_size: int = 100) -> Listing[Verification]:
    """List verifications, newest first.

    Args:
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/verifications", {}, Verification, page_size)


def get_verification(verification_id: str) -> Call[Verification]:
    """Get an earlier verification.

    Args:
        verification_id: its id.

    Returns:
        What was found.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("verifications", verification_id)), Verification)


def get_signing_key() -> Call[SigningKey]:
    """Get the ledger's public signing key.

    Returns:
        The key. Auditors should have it from the operator, too.

    Raises:
        SigningNotConfiguredError: the ledger has none.
        LedgerError: no response arrived.
    """
    return Call(get("v1/signing-key"), SigningKey)


def create_checkpoint() -> Call[Checkpoint]:
    """Sign the head of the organisation's hash chain.

    Returns:
        The checkpoint, to be kept elsewhere.

    Raises:
        SigningNotConfiguredError: the ledger has no signing key.
        LedgerError: no response arrived.
    """
    return Call(post("v1/checkpoints", {}), Checkpoint)


def list_checkpoints(*, page_size: int = 100) -> Listing[Checkpoint]:
    """List checkpoints, newest first.

    Args:
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/checkpoints", {}, Checkpoint, page_size)
