"""The file of an organisation: its schema and its validation, with lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from app.accounting.errors import AccountingError
from app.api.schemas.account_creation import BudgetFields, CreatePopulation
from app.api.schemas.alerts import ReplaceAlertSettings
from app.api.schemas.common import Body, Input, Name, Reference, Timestamp, example
from app.api.schemas.policies import PolicyRules
from app.api.validation_errors import validation_messages
from app.ledger.accounts.alerts import check_thresholds
from app.ledger.errors import InvalidInputError, LedgerError
from app.ledger.permissions import Role
from app.ledger.settings.policies import require_account_policy
from app.ledger.settings.policy_rules import PERSON_RULES, Policy
from app.provisioning.errors import ProvisioningError
from app.provisioning.yaml_text import Path, YamlDocument, quotes_hint, read_yaml

MAX_ERRORS: Final = 20
"""Maximum number of errors of a file that are printed."""


class AlertSettingsDocument(ReplaceAlertSettings):
    """Alert settings of an account."""

    @model_validator(mode="after")
    def _thresholds_increase(self) -> Self:
        try:
            check_thresholds(self.thresholds)
        except InvalidInputError as error:
            raise ValueError(error.detail) from None
        return self


class ManagedAccount(Input):
    """Settings of an account and the budgets under it."""

    alert_settings: AlertSettingsDocument | None = Field(
        default=None, description="Left out: the settings on the server stay."
    )
    policy: PolicyRules | None = Field(default=None, description="Left out: the policy on the server stays.")
    budgets: list["BudgetDocument"] = Field(default=[], description="Budgets directly under this account.")

    @model_validator(mode="after")
    def _policy_is_of_an_account(self) -> Self:
        if self.policy is None:
            return self
        persons = {name: getattr(self.policy, name) for name in PERSON_RULES}
        try:
            require_account_policy(Policy(**persons))
        except InvalidInputError as error:
            raise ValueError(error.detail.rstrip(".")) from None
        return self


class BudgetDocument(BudgetFields, ManagedAccount):
    """A budget."""

    model_config = example({"name": "icu-team", "limit": {"epsilon": 3.0, "delta": 1e-5}})


class PopulationDocument(CreatePopulation, ManagedAccount):
    """A population."""


class ApiKeyDocument(Input):
    """An API key, which its name identifies; its secret is never in a file."""

    name: Name
    role: Annotated[Role, Field(strict=False, description="Permissions of the role.")]
    scope: Reference | None = Field(
        default=None, description="Path of a population or budget, and accounts under it; null: the organisation."
    )
    expires_at: Timestamp | None = Field(default=None, description="Null: it never expires.")


class OrganisationDocument(Body):
    """The configuration of an organisation."""

    version: Literal[1] = Field(description="Version of this format.")
    policy: PolicyRules | None = Field(
        default=None, description="The organisation's policy; left out: the one on the server stays."
    )
    populations: list[PopulationDocument] = Field(default=[], description="Populations, with their budgets.")
    api_keys: list[ApiKeyDocument] | None = Field(default=None, description="Left out: keys are not managed.")


@dataclass(frozen=True, slots=True)
class DesiredAccount:
    """A population or budget of a file.

    Args:
        path: of names.
        parent: path of the account above; None: a population.
        document: its entry.
        place: of the entry in the file.
    """

    path: str
    parent: str | None
    document: PopulationDocument | BudgetDocument
    place: Path

    @property
    def kind(self) -> str:
        """Whether it is a population or a budget."""
        return "budget" if self.parent else "population"


def accounts_of(document: OrganisationDocument) -> Iterator[DesiredAccount]:
    """Iterate over the accounts of a file, parents first."""
    for place, population in enumerate(document.populations):
        yield from _accounts_at(population, None, ("populations", place))


def _accounts_at(
    document: PopulationDocument | BudgetDocument, parent: str | None, place: Path
) -> Iterator[DesiredAccount]:
    path = f"{parent}/{document.name}" if parent else document.name
    yield DesiredAccount(path, parent, document, place)
    for index, budget in enumerate(document.budgets):
        yield from _accounts_at(budget, path, (*place, "budgets", index))


def read_document(content: bytes, name: str) -> OrganisationDocument:
    """Parse and check a file; `name` is for errors.

    Raises:
        ProvisioningError: the file is invalid; it names the lines.
    """
    read = read_yaml(content, name)
    if not isinstance(read.value, dict):
        raise ProvisioningError.of_file(name, [(None, "the file must be a mapping that begins with `version: 1`")])
    try:
        document = OrganisationDocument.model_validate(read.value)
    except ValidationError as error:
        raise ProvisioningError.of_file(name, _messages(error.errors(include_url=False), read)) from None
    except (LedgerError, AccountingError) as error:  # about an event, which carries no place
        raise ProvisioningError.of_file(name, [(None, str(error))]) from None
    errors = list(_check(document))
    if errors:
        placed = [(read.line_of(place), message) for place, message in errors[:MAX_ERRORS]]
        raise ProvisioningError.of_file(name, placed)
    return document


def document_schema() -> dict[str, Any]:
    """Build the JSON Schema of a file, for editors."""
    schema = OrganisationDocument.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _messages(errors: list[Any], read: YamlDocument) -> list[tuple[int | None, str]]:
    """Describe pydantic's errors, each with the line of the closest place that it names."""
    found: dict[tuple[int | None, str], None] = {}
    for error in errors[:MAX_ERRORS]:
        items, _ = validation_messages([{**error, "loc": ("body", *error["loc"])}], OrganisationDocument)
        place: Path = ()
        for part in error["loc"]:  # it has tags of events, which are not in the file
            place = (*place, part) if (*place, part) in read.lines else place
        for item in items:
            field, message = item["field"].removeprefix("body").lstrip("."), item["message"]
            words = message.replace("a JSON object", "a mapping") + quotes_hint(error)
            found[read.line_of(place), f"{field}: {words}" if field else words] = None
    more = len(errors) - MAX_ERRORS
    ordered = sorted(found, key=lambda item: item[0] or 0)
    return [*ordered, *([(None, f"and {more} more errors")] if more > 0 else [])]


def _check(document: OrganisationDocument) -> Iterator[tuple[Path, str]]:
    """Find the errors that concern several entries, or the terms of one."""
    paths: dict[str, Path] = {}
    for account in accounts_of(document):
        if account.path in paths:
            yield account.place, f"there is another account {account.path} in this file; names are unique"
        paths[account.path] = account.place
        try:
            account.document.terms()
        except (LedgerError, AccountingError) as error:
            yield account.place, f"{account.path}: {error}"
    names: set[str] = set()
    for place, key in enumerate(document.api_keys or ()):
        if key.name in names:
            yield ("api_keys", place), f"there is another API key {key.name!r} in this file; names identify keys"
        names.add(key.name)
