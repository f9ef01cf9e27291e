"""`serve --sample`: a sample organisation."""

from ipaddress import ip_address
from typing import Final

import typer

from app.commands.console import print_result
from app.commands.first_admin import browser_origin, http_url, link_facts, link_url
from app.configuration.settings import Settings
from app.http.server import serve as serve_http
from app.ledger.permissions import Role
from app.service.auth.loopback import is_loopback

_SHOWN: Final = (Role.PRIVACY_OFFICER, Role.TRAINER, Role.VIEWER)
"""Roles whose keys are printed; two persons are needed to approve a proposal."""


def serve_sample(host: str, port: int, workers: int, *, as_json: bool) -> None:
    """Serve a sample organisation from a throw-away database, on which a trainer takes steps meanwhile."""
    from app.sample.hospital import ORGANISATION  # noqa: PLC0415 - it imports the whole application
    from app.sample.live_trainer import LiveTrainer  # noqa: PLC0415 - as above
    from app.sample.sample_ledger import sample_ledger  # noqa: PLC0415 - as above

    if not is_loopback(host):
        typer.echo(
            f"The sample listens on {host}: its keys are printed here, and each of them works from there.",
            err=True,
        )
    typer.echo("Filling a sample ledger, which takes some seconds ...", err=True)
    with sample_ledger() as sample:
        origin = browser_origin(host, port, Settings().public_url)
        keys = {str(role): sample.keys[role] for role in _SHOWN}
        lines = [
            f"Epsilon Ledger on {http_url(host, port)}, with the sample organisation {ORGANISATION}.",
            "Everything is deleted when it stops.",
            "",
            "Sign in as its admin, once, within 15 minutes:",
            "",
            f"    {link_url(origin, sample.link)}",
            "",
            "Or as somebody else, for example to approve what is proposed, with a key:",
            "",
            *(f"    {role:16} {key}" for role, key in keys.items()),
        ]
        facts = {"host": host, "port": port, "workers": workers, "database": sample.database_url, "keys": keys}
        facts |= link_facts(ORGANISATION, origin, sample.link)
        print_result(as_json=as_json, text="\n".join(lines), facts=facts)
        trainer = LiveTrainer(port, sample.keys[Role.TRAINER], sample.live_run, reachable(host))
        trainer.start()
        try:
            serve_http(host, port, workers)
        finally:
            trainer.stop()


def reachable(host: str) -> str:
    """Choose the address at which this machine reaches a server that listens on a host."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004 - of the protocol
