"""The file of workload issuers: which tokens are exchanged for keys, and by which rules."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.ledger.permissions import SINGLE_USE_ROLE, Role
from app.provisioning.errors import ProvisioningError
from app.service.auth.oidc.config import check_issuer, check_url
from app.service.auth.oidc.http_json import FetchAccess
from app.service.auth.workload.config import ANY_REST, WorkloadIssuer, WorkloadRule

IDENTIFYING_CLAIMS: Final = (
    *("sub", "repository", "repository_id", "repository_owner", "repository_owner_id"),
    *("project_path", "project_id", "namespace_path", "namespace_id", "kubernetes.io/namespace"),
)
"""Claims that say whose workload it is. A public issuer signs tokens for everybody."""

DELIMITERS: Final = ":/"

MAX_RULES: Final = 1000

_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_File = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _check_value(value: str) -> str:
    if ANY_REST in value[:-1]:
        raise ValueError(f"`{ANY_REST}` is allowed at the end only")
    if value.endswith(ANY_REST) and value[-2:-1] not in tuple(DELIMITERS):
        raise ValueError(
            f"a prefix ends with one of {' '.join(DELIMITERS)} before the `{ANY_REST}`, so that no longer name matches"
        )
    return value


class RuleSettings(_Model):
    """A rule of an issuer; see `WorkloadRule`."""

    claims: Annotated[dict[_Text, Annotated[_Text, AfterValidator(_check_value)]], Field(min_length=1, max_length=20)]
    organisation: _Text
    role: Role = SINGLE_USE_ROLE
    scope: _Text | None = None
    single_use: bool | None = None

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if not set(self.claims) & set(IDENTIFYING_CLAIMS):
            raise ValueError(
                f"`claims` says whose workload it is by one of {', '.join(IDENTIFYING_CLAIMS)}: the issuer may sign "
                "tokens for others, too"
            )
        trains = self.role is SINGLE_USE_ROLE
        if self.single_use and not trains:
            raise ValueError(f"`single_use` is for the role {SINGLE_USE_ROLE}")
        if trains and self.single_use is not False and self.scope is None:
            raise ValueError("give the `scope` in which the workload registers a run, or `single_use: false`")
        return self

    def rule(self) -> WorkloadRule:
        """Convert to the domain."""
        trains = self.role is SINGLE_USE_ROLE
        single_use = trains if self.single_use is None else self.single_use
        return WorkloadRule(self.claims, self.organisation, self.role, self.scope, single_use)


class IssuerSettings(_Model):
    """An issuer; see `WorkloadIssuer`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    issuer: Annotated[str, AfterValidator(check_issuer)]
    audience: _Text
    jwks_url: str | None = None
    jwks_file: _File | None = None
    ca_file: _File | None = None
    token_file: _File | None = None
    key_minutes: Annotated[float, Field(ge=1, le=1440, allow_inf_nan=False)] = 60
    single_use_tokens: bool = False
    rules: Annotated[list[RuleSettings], Field(min_length=1, max_length=MAX_RULES)]

    @model_validator(mode="after")
    def _has_one_key_set(self) -> Self:
        if self.jwks_file is not None and {self.jwks_url, self.ca_file, self.token_file} != {None}:
            raise ValueError("`jwks_file` stands alone, without `jwks_url`, `ca_file` and `token_file`")
        if self.jwks_url is not None:
            check_url(self.jwks_url, self.issuer)
        return self

    def workload_issuer(self) -> WorkloadIssuer:
        """Convert to the domain."""
        return WorkloadIssuer(
            name=self.name,
            issuer=self.issuer,
            audience=self.audience,
            rules=tuple(each.rule() for each in self.rules),
            key_lifetime=timedelta(minutes=self.key_minutes),
            single_use_tokens=self.single_use_tokens,
            jwks_url=self.jwks_url,
            jwks_file=self.jwks_file,
            access=FetchAccess(self.ca_file, self.token_file),
        )


class WorkloadIssuersFile(_Model):
    """The whole file."""

    issuers: Annotated[list[IssuerSettings], Field(min_length=1, max_length=100)]

    @model_validator(mode="after")
    def _are_different(self) -> Self:
        for field in ("name", "issuer"):
            values = [getattr(each, field) for each in self.issuers]
            twice = [value for value in values if values.count(value) > 1]
            if twice:
                raise ValueError(f"two issuers have the {field} {twice[0]!a}")
        return self


def read_workload_issuers(path: Path) -> tuple[WorkloadIssuer, ...]:
    """Read the issuers of a YAML or JSON file.

    Raises:
        ValueError: it cannot be read, or is invalid; the message names the first place.
    """
    # Imported here: most services have no such file.
    from app.provisioning.yaml_text import quotes_hint, read_yaml  # noqa: PLC0415 - as said

    try:
        document = read_yaml(path.read_bytes(), str(path))
        found = WorkloadIssuersFile.model_validate(document.value)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error}") from None
    except ProvisioningError as error:
        raise ValueError(str(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        line, place = document.line_of(first["loc"]), ".".join(map(str, first["loc"]))
        why = first["msg"].removeprefix("Value error, ").removesuffix(".") + quotes_hint(first)
        raise ValueError(f"line {line or 1}: {place + ': ' if place else ''}{why}") from None
    return tuple(each.workload_issuer() for each in found.issuers)
