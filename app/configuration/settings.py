"""Settings from environment variables, frozen."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.configuration.workload_issuers import read_workload_issuers
from app.ledger.names import EMAIL_PATTERN, MAX_EMAIL_LENGTH
from app.persistence.database import POOL_SIZE
from app.service.alerts.mail_sender import DEFAULT_PORTS, SmtpServer, SmtpTls
from app.service.auth.oidc.authorization_code import OidcClient, secret_in
from app.service.auth.oidc.config import (
    OidcConfig,
    RoleMapping,
    check_issuer,
    check_origin,
    check_url,
    read_roles,
)
from app.service.auth.workload.config import WorkloadIssuer

PREFIX: Final = "EPSILON_LEDGER_"
FOREIGN_VARIABLES: Final = frozenset(f"{PREFIX}{name}" for name in ("URL", "API_KEY", "TOKEN_FILE", "FAULTS"))
"""Variables of the client and of this project's tests, which are not settings of the service."""

MIN_TOKEN_LENGTH: Final = 16
MAX_TOKEN_LENGTH: Final = 500

MetricsToken = Annotated[str, Field(min_length=MIN_TOKEN_LENGTH, max_length=MAX_TOKEN_LENGTH, pattern=r"^[!-~]+$")]

Claim = Annotated[str, Field(min_length=1, max_length=300)]


class Settings(BaseSettings):
    """Configuration; each setting is an environment variable with the prefix EPSILON_LEDGER_.

    Args:
        database_url: sqlite:///FILE or postgresql://USER@HOST/DATABASE.
        init_when_empty: whether `serve` on an empty database creates the organisation `default` and prints a one-time
            sign-in link; not where an OpenID Connect provider knows the organisation.
        database_pool_size: maximum connections of a worker process to PostgreSQL.
        database_pool_mode: whether a connection keeps its session of the server, or a pooler such as PgBouncer gives
            each transaction another one.
        database_password_file: password for URLs without one, read at every connection; empty: libpq finds one
            (PGPASSWORD, PGPASSFILE).
        rate_limit_per_second: requests for each key in a worker process; 0: unlimited.
        rate_limit_burst: requests at once for each key.
        rate_limit_anonymous_per_second: requests without a valid key for each address, ten times as many at once;
            0: unlimited.
        rate_limit_exchanges_per_minute: exchanged tokens for each workload, ten times as many at once; 0: unlimited.
        rate_limit_sign_ins_per_minute: browser sign-ins for each key or person; ten times as many at once, and ten
            times as many for an address; 0: unlimited.
        max_connections: concurrent connections of a worker process.
        request_head_seconds: time for a request's line and headers to arrive.
        request_body_seconds: time for its body, and for a client that reads nothing of its response.
        session_hours: maximum lifetime of a browser session.
        signing_key_file: PEM file with the Ed25519 key that signs checkpoints and statements; empty: none.
        checkpoint_seconds: interval of signed checkpoints if there is a key; 0: on request only.
        webhooks_allow_private: allow receivers at private addresses and over http.
        smtp_host: server that sends mails; empty: receivers of mail are refused.
        smtp_port: None: 587 for starttls, 465 for tls, 25 for none.
        smtp_tls: how the connection is encrypted.
        smtp_user: name to sign in with; empty: without.
        smtp_password_file: file with the password, read at each connection.
        smtp_from: address of the sender.
        log_format: of the lines on standard error.
        log_level: the minimum level.
        log_requests: log one line for each request.
        shutdown_seconds: time to finish requests after a stop signal.
        shutdown_delay_seconds: time to accept connections before that, while /readyz returns 503.
        metrics_token: bearer token for /metrics; None: for this machine only, without the names of accounts.
        metrics_token_file: file with that token.
        metrics_top_accounts: number of populations, and of budgets, that metrics list by used share.
        oidc_issuer: OpenID Connect issuer of accepted tokens; None: tokens are not accepted.
        oidc_audience: required audience of tokens.
        oidc_jwks_url: key set; None: from /.well-known/openid-configuration.
        oidc_organisation: id or name of the organisation of all users; or instead
        oidc_organisation_claim: the claim with it.
        oidc_roles: JSON object from a group to a role and optionally the scope of an account.
        oidc_groups_claim: claim with the user's groups.
        oidc_subject_claim: claim with the user's unique, never reused id.
        oidc_client_id: this service's client id, which enables browser login; None: disabled.
        oidc_client_secret_file: file with the client secret; empty: a public client.
        oidc_scopes: requested scopes, such that tokens include the groups.
        oidc_session_minutes: time until a browser session is checked with the provider again.
        workload_issuers_file: YAML file with the issuers whose tokens are exchanged for keys; empty: none.
        public_url: public origin of the service, as https://HOST; None: from the request.
        run_lost_after_days: silence after which an active run ends as lost; 0: never.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, hide_input_in_errors=True)

    database_url: Annotated[str, Field(repr=False)] = "sqlite:///epsilon-ledger.db"
    init_when_empty: bool = True
    database_pool_size: Annotated[int, Field(ge=1, le=1000)] = POOL_SIZE
    database_pool_mode: Literal["session", "transaction"] = "session"
    database_password_file: str = ""
    rate_limit_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2000
    rate_limit_burst: Annotated[int, Field(ge=1)] = 4000
    rate_limit_anonymous_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20
    rate_limit_exchanges_per_minute: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60
    rate_limit_sign_ins_per_minute: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    request_head_seconds: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 10
    request_body_seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 30
    session_hours: Annotated[float, Field(gt=0, le=720, allow_inf_nan=False)] = 12
    signing_key_file: str = ""
    checkpoint_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3600
    webhooks_allow_private: bool = False
    smtp_host: Annotated[str, Field(pattern=r"^[!-~]*$", max_length=253)] = ""
    smtp_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    smtp_tls: SmtpTls = "starttls"
    smtp_user: Annotated[str, Field(max_length=300)] = ""
    smtp_password_file: str = ""
    smtp_from: Annotated[str, Field(pattern=rf"^(?:{EMAIL_PATTERN[1:-1]})?$", max_length=MAX_EMAIL_LENGTH)] = ""
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_requests: bool = False
    shutdown_seconds: Annotated[float, Field(ge=1, le=600)] = 20
    shutdown_delay_seconds: Annotated[float, Field(ge=0, le=600)] = 0
    metrics_token: Annotated[MetricsToken | None, Field(repr=False)] = None
    metrics_token_file: str = ""
    metrics_top_accounts: Annotated[int, Field(ge=0, le=1000)] = 100
    oidc_issuer: Annotated[str, AfterValidator(check_issuer)] | None = None
    oidc_audience: Claim | None = None
    oidc_jwks_url: str | None = None
    oidc_organisation: Claim | None = None
    oidc_organisation_claim: Claim | None = None
    oidc_roles: Annotated[dict[str, RoleMapping], NoDecode, BeforeValidator(read_roles), Field(default_factory=dict)]
    oidc_groups_claim: Claim = "groups"
    oidc_subject_claim: Claim = "sub"
    oidc_client_id: Claim | None = None
    oidc_client_secret_file: str = ""
    oidc_scopes: Annotated[str, Field(pattern=r"^(?:[!#-\[\]-~]+ )*openid(?: [!#-\[\]-~]+)*$", max_length=1000)] = (
        "openid"
    )
    oidc_session_minutes: Annotated[float, Field(ge=1, le=1440, allow_inf_nan=False)] = 60
    workload_issuers_file: str = ""
    public_url: Annotated[str, AfterValidator(check_origin)] | None = None
    run_lost_after_days: Annotated[float, Field(ge=0, le=3650, allow_inf_nan=False)] = 30

    @model_validator(mode="after")
    def _oidc_is_whole(self) -> Self:
        """Refuse an incomplete OpenID Connect configuration."""
        given = [name for name in self.model_fields_set if name.startswith("oidc_") and getattr(self, name)]
        if not given:
            return self
        for name in ("oidc_issuer", "oidc_audience", "oidc_roles"):
            if name not in given:
                raise ValueError(f"{_variable(min(given))} is set, but {_variable(name)} is not")
        if bool(self.oidc_organisation) == bool(self.oidc_organisation_claim):
            raise ValueError(
                f"set either {_variable('oidc_organisation')} or {_variable('oidc_organisation_claim')}, "
                "so that it is plain whose people the provider knows"
            )
        if self.oidc_jwks_url is not None:
            try:
                check_url(self.oidc_jwks_url, self.oidc_issuer)
            except ValueError as error:
                raise ValueError(f"{_variable('oidc_jwks_url')} is invalid: {error}") from None
        return self

    @model_validator(mode="after")
    def _workload_issuers_are_readable(self) -> Self:
        """Refuse an invalid file of issuers, and one that names the issuer of people's tokens for the same audience."""
        file = _variable("workload_issuers_file")
        try:
            found = self.workload_issuers
        except ValueError as error:
            raise ValueError(f"{file} names {self.workload_issuers_file}: {error}") from None
        for each in found:
            if (each.issuer, each.audience) == (self.oidc_issuer, self.oidc_audience):
                raise ValueError(
                    f"{file} has the issuer and audience of {_variable('oidc_issuer')}: give workloads an audience of "
                    "their own"
                )
        return self

    @model_validator(mode="after")
    def _one_metrics_token(self) -> Self:
        """Refuse two metrics tokens, and a token file without a valid token."""
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

    @model_validator(mode="after")
    def _smtp_is_whole(self) -> Self:
        """Refuse an incomplete SMTP configuration, and a password that would be sent in clear."""
        for name in self.model_fields_set & {"smtp_port", "smtp_user", "smtp_password_file", "smtp_from"}:
            if getattr(self, name) and not self.smtp_host:
                raise ValueError(f"{_variable(name)} is set, but {_variable('smtp_host')} is not")
        if self.smtp_host and not self.smtp_from:
            raise ValueError(f"{_variable('smtp_host')} is set, but {_variable('smtp_from')} is not")
        if bool(self.smtp_user) != bool(self.smtp_password_file):
            raise ValueError(f"set both {_variable('smtp_user')} and {_variable('smtp_password_file')}, or neither")
        if self.smtp_user and self.smtp_tls == "none":
            raise ValueError(
                f"{_variable('smtp_user')} needs encryption: set {_variable('smtp_tls')} to starttls or tls"
            )
        if self.smtp_password_file:
            file = _variable("smtp_password_file")
            try:
                password = Path(self.smtp_password_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{file} cannot be read: {error}") from None
            if not password:
                raise ValueError(f"{file} holds no password: write it in one line")
        return self

    @property
    def smtp_server(self) -> SmtpServer | None:
        """The server that sends mails, or None."""
        if not self.smtp_host:
            return None
        port = self.smtp_port or DEFAULT_PORTS[self.smtp_tls]
        return SmtpServer(self.smtp_host, port, self.smtp_tls, self.smtp_from, self.smtp_user, self.smtp_password_file)

    @property
    def resolved_metrics_token(self) -> str | None:
        """Token required to read metrics, or None."""
        if self.metrics_token_file:
            return Path(self.metrics_token_file).read_text(encoding="utf-8").strip()
        return self.metrics_token

    @property
    def openid(self) -> OidcConfig | None:
        """OpenID Connect configuration, or None for API keys alone."""
        if self.oidc_issuer is None or self.oidc_audience is None:
            return None
        return OidcConfig(
            issuer=self.oidc_issuer,
            audience=self.oidc_audience,
            organisation=self.oidc_organisation,
            organisation_claim=self.oidc_organisation_claim,
            roles=self.oidc_roles,
            jwks_url=self.oidc_jwks_url,
            groups_claim=self.oidc_groups_claim,
            subject_claim=self.oidc_subject_claim,
        )

    @cached_property
    def workload_issuers(self) -> tuple[WorkloadIssuer, ...]:
        """Issuers whose tokens are exchanged for keys."""
        return read_workload_issuers(Path(self.workload_issuers_file)) if self.workload_issuers_file else ()

    def oidc_client(self) -> OidcClient | None:
        """Build the client for browser login, or None if it is not configured.

        Raises:
            InvalidInputError: the file with the client secret cannot be read.
        """
        if self.openid is None or self.oidc_client_id is None:
            return None
        secret = secret_in(self.oidc_client_secret_file) if self.oidc_client_secret_file else None
        return OidcClient(self.openid, self.oidc_client_id, secret, self.oidc_scopes)

    @property
    def pooled(self) -> bool:
        """Whether a pooler gives each transaction another session of PostgreSQL."""
        return self.database_pool_mode == "transaction"


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def known_variables() -> list[str]:
    """List the environment variables that are settings."""
    return [_variable(name) for name in Settings.model_fields]


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """List, sorted, the names that look like a setting and are none; case is ignored."""
    known = {*known_variables(), *FOREIGN_VARIABLES}
    return sorted(name for name in environment if name.upper().startswith(PREFIX) and name.upper() not in known)
