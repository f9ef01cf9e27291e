"""Commands that verify, sign, copy and export a ledger."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final

import typer

from app.commands.console import (
    Json,
    MetricsFile,
    Organisation,
    open_ledger,
    open_organisation,
    print_result,
    require_database,
)
from app.configuration.settings import Settings
from app.ledger.errors import InvalidInputError
from app.persistence.database import Database
from app.service.audit.checkpoints import make_checkpoint
from app.service.audit.export import export
from app.service.audit.statements import describe_statement
from app.service.auth.authentication import CLI_ACTOR
from app.service.database_copy import copy_database, require_unused
from app.service.json_values import read_object
from app.service.monitoring.textfile import write_verification
from app.service.signing.signatures import require_signer, signer_of
from app.service.verification.report import VerificationReport
from app.service.verification.requests import apply_quarantines
from app.service.verification.trusted_checkpoints import Evidence, TrustedCheckpoint, trusted_checkpoint_of
from app.service.verification.verify import verify as verify_ledger

MAX_LIFT_COMMANDS: Final = 20
"""Maximum number of `quarantine lift` commands that `verify` prints."""

_SUMMARY: Final = (
    "{accounts} accounts ({runs} of them runs) recomputed from {charges} charges for {steps} steps, "
    "{decisions} chained decisions, {reservations} reservations and {audit_events} audit events"
)


def copy_ledger(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="URL of the source database.")],
    target: Annotated[
        str, typer.Option("--to", metavar="URL", help="URL of the target database: empty, with the newest schema.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Copy a ledger to another database and verify the copy; exit 1 on a mismatch.

    Stop the service first: a source that is being served is refused.

    Put passwords into PGPASSWORD or a password file: other users can read command lines.
    """
    old, new = Database(source, called="--from"), Database(target, called="--to")
    try:
        require_database(old, "--from")
        require_unused(old)
        copied = copy_database(old, new)
    finally:
        old.dispose()
        new.dispose()
    facts = {"sound": copied.found.sound, "rows": dict(copied.rows), "discrepancies": list(copied.found.problems)}
    verdict = (
        "every curve agrees byte for byte" if copied.found.sound else f"{len(copied.found.problems)} discrepancies"
    )
    summary = f"{sum(copied.rows.values())} rows of {len(copied.rows)} tables copied, and the copy verified: {verdict}."
    print_result(as_json=as_json, text="\n".join([summary, *copied.found.problems]), facts=facts)
    raise typer.Exit(0 if copied.found.sound else 1)


def verify(
    *,
    read_only: Annotated[bool, typer.Option("--read-only", metavar="", help="Quarantine no account.")] = False,
    checkpoint: Annotated[
        list[Path] | None, typer.Option("--checkpoint", help="File of a signed checkpoint to compare with; repeatable.")
    ] = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--public-key", help="PEM file of a key that signed checkpoints, the stored ones too; repeatable."
        ),
    ] = None,
    metrics_file: MetricsFile = None,
    as_json: Json = False,
) -> None:
    """Recompute every account from its charges and check every hash chain; exit 1 on a mismatch.

    Unverified accounts are quarantined until two persons lift that: `quarantine lift`.
    """
    evidence = _evidence(checkpoint or [], public_key or [])
    began_at = monotonic()
    with open_ledger(migrated=False, read_only=read_only) as db:
        found = verify_ledger(db, evidence=evidence)
        if not read_only:
            found = apply_quarantines(db, found, CLI_ACTOR, db.clock.now(), evidence)
    if metrics_file is not None:
        write_verification(metrics_file, found, monotonic() - began_at, datetime.now(UTC))
    facts = {
        "sound": found.sound,
        **found.checked,
        "discrepancies": list(found.problems),
        "unproven": sorted(account for _, account in found.unproven),
        "quarantined": {account: why for (_, account), why in sorted(found.quarantined.items())},
    }
    summary = _SUMMARY.format_map(found.checked)
    verdict = "every curve agrees byte for byte" if found.sound else f"{len(found.problems)} discrepancies"
    stopped = f"Writes to {len(found.quarantined)} accounts are stopped." if found.quarantined else ""
    whole = f"{summary}: {verdict}." if found.checked["accounts"] or not found.sound else "The ledger is empty."
    compared = [f"Compared with {each.name}: {each.signed}." for each in evidence.checkpoints]
    lines = [whole, *compared, *found.problems, stopped, *_lift_commands(found)]
    print_result(as_json=as_json, text="\n".join(filter(None, lines)), facts=facts)
    raise typer.Exit(0 if found.sound else 1)


def checkpoint(organisation: Organisation) -> None:
    """Sign the whole history of an organisation and print the checkpoint as JSON; store it elsewhere."""
    signer = require_signer(signer_of(Settings().signing_key_file))
    with open_organisation(organisation) as context:
        typer.echo(make_checkpoint(context, signer).document)


def verify_statement(
    statement: Annotated[Path, typer.Argument(help="File of a signed statement.")],
    public_key: Annotated[Path, typer.Option("--public-key", help="PEM file of the issuer's public key.")],
    *,
    as_json: Json = False,
) -> None:
    """Check that a statement is signed, and print what it says; needs no database. Exit 1 if it is not signed."""
    from app.service.signing.ed25519 import is_signed_by  # noqa: PLC0415 - as its docstring says

    try:
        document = read_object(statement.read_bytes())
        sound = is_signed_by(document, public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"The statement, or the public key, cannot be read: {error}") from error
    payload: Any = document["payload"]
    said = describe_statement(payload) if sound else f"{statement} is not signed by this key, or was changed since."
    facts = {"sound": sound, "payload": payload if sound else None}
    print_result(as_json=as_json, text=f"Sound: {said}" if sound else f"NOT SOUND: {said}", facts=facts)
    raise typer.Exit(0 if sound else 1)


def export_charges(
    run: Annotated[str | None, typer.Option(help="A run's id.")] = None,
    population: Annotated[str | None, typer.Option(help="A population's id or name.")] = None,
    organisation: Annotated[
        str | None, typer.Option("--org", help="The organisation's id or name, if several have such a population.")
    ] = None,
) -> None:
    """Write the charges of a run or a population as JSON lines; examples/verify_export.py verifies them."""
    with open_ledger(migrated=False) as db:
        for line in export(db, db.clock.now(), run=run, population=population, organisation=organisation):
            typer.echo(line)


def _lift_commands(found: VerificationReport) -> Iterator[str]:
    """Explain how to lift the quarantines that are no longer justified."""
    liftable = sorted(found.liftable)
    if not liftable:
        return
    yield (
        f"Nothing is wrong any more with {len(liftable)} of them. Each stays stopped until two persons lift its "
        "quarantine. The command line is one of them:"
    )
    for organisation, account in liftable[:MAX_LIFT_COMMANDS]:
        yield f"  epsilon-ledger quarantine lift {account} --org {organisation} --reason '…'"
    if liftable[MAX_LIFT_COMMANDS:]:
        yield f"  and {len(liftable[MAX_LIFT_COMMANDS:])} more, which `epsilon-ledger quarantine list` names"
    yield "The other one approves it, or has proposed it, on the pages. It covers everything under an account."


def _evidence(files: list[Path], public_keys: list[Path]) -> Evidence:
    """Read and check the checkpoints that were kept elsewhere, and the public keys."""
    if files and not public_keys:
        raise InvalidInputError("A checkpoint is believed by its signature: name the public key with --public-key.")
    from app.service.signing.ed25519 import key_id_of, load_public_key  # noqa: PLC0415 - as its docstring says

    try:
        keys = {key_id_of(load_public_key(content)): content for content in (file.read_bytes() for file in public_keys)}
        return Evidence([_trusted(file, keys) for file in files], keys)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"A checkpoint, or the public key, cannot be read: {error}") from error


def _trusted(file: Path, keys: Mapping[str, bytes]) -> TrustedCheckpoint:
    """Read a checkpoint, by the key that it names, or else by any: it is then refused."""
    document = read_object(file.read_bytes())
    signature = document.get("signature")
    named = signature.get("key_id") if isinstance(signature, dict) else None
    return trusted_checkpoint_of(document, keys.get(str(named), next(iter(keys.values()))), str(file))
