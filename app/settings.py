"""Settings, frozen, from the environment."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.persistence.database import POOL_SIZE
from app.service.auth.authentication import DEFAULT_PLACEMENT
from app.service.auth.oidc.authorization_code import OidcClient, OidcClientConfig, secret_in
from app.service.auth.oidc.config import OidcConfig, RoleMapping, check_issuer, check_origin, check_url, read_roles


def _placements(given: object) -> object:
    """A JSON object in which every name stands once, and none is that of the default placement."""
    if not isinstance(given, str):
        return given
    right = 'write {"eu-2": "postgresql://USER@HOST/DATABASE"}'
    try:
        pairs = json.loads(given, object_pairs_hook=list)
    except ValueError:
        raise ValueError(f"it is no JSON; {right}") from None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise ValueError(f"it is no JSON object of placements and database URLs; {right}")
    twice = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if twice:
        raise ValueError(f"the placement {twice[0]!a} stands there twice")
    if DEFAULT_PLACEMENT in dict(pairs):
        raise ValueError(f"the placement {DEFAULT_PLACEMENT!r} is EPSILON_LEDGER_DATABASE_URL itself; name others")
    return dict(pairs)


PREFIX: Final = "EPSILON_LEDGER_"
OTHERS: Final = frozenset(f"{PREFIX}{name}" for name in ("URL", "API_KEY", "TORTURE", "FAULTS"))
"""Of the trainers' client and of this project's tests: no settings of the service, and no mistakes."""

MIN_TOKEN_LENGTH: Final = 16
MAX_TOKEN_LENGTH: Final = 500

PlacementName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]

MetricsToken = Annotated[str, Field(min_length=MIN_TOKEN_LENGTH, max_length=MAX_TOKEN_LENGTH, pattern=r"^[!-~]+$")]

Claim = Annotated[str, Field(min_length=1, max_length=300)]


class Settings(BaseSettings):
    """What can be configured; each by an environment variable with the prefix EPSILON_LEDGER_.

    Args:
        database_url: sqlite:///FILE or postgresql://USER@HOST/DATABASE; by default a SQLite file in the working folder.
        database_pool_size: how many connections to each PostgreSQL a worker process keeps at the most.
        database_password_file: a file with the password for databases whose URLs have none, read with every new
            connection; empty: libpq looks for one (PGPASSWORD, PGPASSFILE).
        rate_limit_per_second: requests a second that a worker process takes of one key; 0: as many as come.
        rate_limit_burst: how many it takes at once of a key that was silent.
        rate_limit_failures_per_second: requests without a known key that it takes of one address; 0: as many as come.
            At once it takes ten times as many.
        rate_limit_sign_ins_per_minute: how often one key or person may sign in with a browser, and ten times as often
            at once; all at one address may try ten times as often; 0: as often as they like.
        max_connections: how many connections a worker process takes at a time.
        request_head_seconds: how long a request's line and headers may take to arrive.
        request_body_seconds: how long its body may then take, and how long nothing may be taken of an answer.
        session_hours: how long somebody stays signed in with a browser at the most.
        signing_key_file: a PEM file with the Ed25519 private key that signs checkpoints and statements; empty: none.
        checkpoint_seconds: how often the history of each organisation is signed, if there is a key; 0: when asked only.
        placements: further databases, each with organisations of its own: a JSON object of names and URLs.
        webhooks_allow_private: whether webhooks may lead to addresses that are not public, and by http.
        log_format: of the lines on standard error.
        log_level: the lowest that is logged.
        log_requests: whether each request has a line.
        shutdown_seconds: how long a process that is told to stop goes on answering who has asked.
        shutdown_delay_seconds: how long it takes new connections all the same, while /readyz says 503.
        metrics_token: what Prometheus sends to read /metrics; None: anybody may, and nobody is named.
        metrics_token_file: a file with that token.
        metrics_top_accounts: of how many populations, and of how many budgets, metrics say how full they are.
        openid_issuer: the OpenID Connect provider whose tokens people may send, as these name it; None: no tokens.
        openid_audience: what tokens for this service are made out to.
        openid_jwks_url: where its keys are; None: where its /.well-known/openid-configuration says.
        openid_organisation: id or name of the organisation whose people it knows; or instead
        openid_organisation_claim: the claim that holds that.
        openid_roles: a JSON object from a group to its role and, if that is bound to an account, a scope.
        openid_groups_claim: the claim that lists a person's groups.
        openid_subject_claim: the claim that names a person, and never another one.
        openid_client_id: as the provider knows this service, whose pages then let people sign in there; None: they do
            not.
        openid_client_secret_file: a file with what the service proves itself by; empty: it is a public client.
        openid_scopes: what is asked of the provider, so that its tokens have the groups.
        openid_session_minutes: how long somebody who signed in there is believed before the provider is asked again.
        public_url: where people find the service, as https://HOST; None: as each request says.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, hide_input_in_errors=True)

    database_url: Annotated[str, Field(repr=False)] = "sqlite:///epsilon-ledger.db"
    database_pool_size: Annotated[int, Field(ge=1, le=1000)] = POOL_SIZE
    database_password_file: str = ""
    rate_limit_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2000
    rate_limit_burst: Annotated[int, Field(ge=1)] = 4000
    rate_limit_failures_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20
    rate_limit_sign_ins_per_minute: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    request_head_seconds: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 10
    request_body_seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 30
    session_hours: Annotated[float, Field(gt=0, le=720, allow_inf_nan=False)] = 12
    signing_key_file: str = ""
    checkpoint_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3600
    placements: Annotated[
        dict[PlacementName, str], NoDecode, BeforeValidator(_placements), Field(repr=False, default_factory=dict)
    ]

    webhooks_allow_private: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_requests: bool = False
    shutdown_seconds: Annotated[float, Field(ge=1, le=600)] = 20
    shutdown_delay_seconds: Annotated[float, Field(ge=0, le=600)] = 0
    metrics_token: Annotated[MetricsToken | None, Field(repr=False)] = None
    metrics_token_file: str = ""
    metrics_top_accounts: Annotated[int, Field(ge=0, le=1000)] = 100
    openid_issuer: Annotated[str, AfterValidator(check_issuer)] | None = None
    openid_audience: Claim | None = None
    openid_jwks_url: str | None = None
    openid_organisation: Claim | None = None
    openid_organisation_claim: Claim | None = None
    openid_roles: Annotated[dict[str, RoleMapping], NoDecode, BeforeValidator(read_roles), Field(default_factory=dict)]
    openid_groups_claim: Claim = "groups"
    openid_subject_claim: Claim = "sub"
    openid_client_id: Claim | None = None
    openid_client_secret_file: str = ""
    openid_scopes: Annotated[str, Field(pattern=r"^(?:[!#-\[\]-~]+ )*openid(?: [!#-\[\]-~]+)*$", max_length=1000)] = (
        "openid"
    )
    openid_session_minutes: Annotated[float, Field(ge=1, le=1440, allow_inf_nan=False)] = 60
    public_url: Annotated[str, AfterValidator(check_origin)] | None = None

    @model_validator(mode="after")
    def _openid_is_whole(self) -> Self:
        """Refuse half of what is to be agreed with a provider: who forgot a part would let in too many, or nobody."""
        given = [name for name in self.model_fields_set if name.startswith("openid_") and getattr(self, name)]
        if not given:
            return self
        for name in ("openid_issuer", "openid_audience", "openid_roles"):
            if name not in given:
                raise ValueError(f"{_variable(min(given))} is set, but {_variable(name)} is not")
        if bool(self.openid_organisation) == bool(self.openid_organisation_claim):
            raise ValueError(
                f"set either {_variable('openid_organisation')} or {_variable('openid_organisation_claim')}, "
                "so that it is plain whose people the provider knows"
            )
        if self.openid_jwks_url is not None and self.openid is not None:
            try:
                check_url(self.openid_jwks_url, by_http=self.openid.by_http)
            except ValueError as error:
                raise ValueError(f"{_variable('openid_jwks_url')} is not right: {error}") from None
        return self

    @model_validator(mode="after")
    def _one_metrics_token(self) -> Self:
        """Refuse two tokens, and a file that has none: what was meant to be closed must not stand open."""
        if self.metrics_token_file:
            file, token = _variable("metrics_token_file"), _variable("metrics_token")
            if self.metrics_token is not None:
                raise ValueError(f"set either {token} or {file}")
            try:
                read = self.resolved_metrics_token
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{file} cannot be read: {error}") from None
            if read is None or not MIN_TOKEN_LENGTH <= len(read) <= MAX_TOKEN_LENGTH or not read.isascii():
                raise ValueError(f"{file} holds no token: write one line of {MIN_TOKEN_LENGTH} or more characters")
        return self

    @property
    def resolved_metrics_token(self) -> str | None:
        """What is to be sent to read metrics; None: nothing."""
        if self.metrics_token_file:
            return Path(self.metrics_token_file).read_text(encoding="utf-8").strip()
        return self.metrics_token

    @property
    def openid(self) -> OidcConfig | None:
        """What is agreed with an OpenID Connect provider; None: people have API keys, too."""
        if self.openid_issuer is None or self.openid_audience is None:
            return None
        return OidcConfig(
            issuer=self.openid_issuer,
            audience=self.openid_audience,
            organisation=self.openid_organisation,
            organisation_claim=self.openid_organisation_claim,
            roles=self.openid_roles,
            jwks_url=self.openid_jwks_url,
            groups_claim=self.openid_groups_claim,
            subject_claim=self.openid_subject_claim,
        )

    def oidc_client(self) -> OidcClient | None:
        """The way of people to the provider and back; None: they sign in with keys.

        Raises:
            InvalidInputError: the file with the secret cannot be read.
        """
        if self.openid is None or self.openid_client_id is None:
            return None
        secret = secret_in(self.openid_client_secret_file) if self.openid_client_secret_file else None
        return OidcClient(self.openid, OidcClientConfig(self.openid_client_id, secret, self.openid_scopes))

    @property
    def database_urls(self) -> dict[str, str]:
        """The URL of every placement, the default one first."""
        return {DEFAULT_PLACEMENT: self.database_url, **self.placements}


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def known_variables() -> list[str]:
    """The environment variables that are settings of the service."""
    return [_variable(name) for name in Settings.model_fields]


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Variables that look like a setting and are none.

    Args:
        environment: the names of all variables; case does not matter.

    Returns:
        Those that nothing reads, in order.
    """
    known = {*known_variables(), *OTHERS}
    return sorted(name for name in environment if name.upper().startswith(PREFIX) and name.upper() not in known)
