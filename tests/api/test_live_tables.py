"""The tables of roles and of organisations against two workers of a process: for `make soak`, on both databases."""

from collections.abc import Iterator
from dataclasses import replace

import httpx2
import pytest

from app.persistence.tables import metadata
from tests.api.conftest import SeededLedger, furnish
from tests.api.test_roles import (
    test_body_names_objects_of_another_organisation_in_vain as test_body_names_nothing_of_another_organisation,
)
from tests.api.test_roles import (
    test_missing_role_is_refused_before_an_id_is_looked_up as test_missing_role_is_refused_first,
)
from tests.api.test_roles import (
    test_other_role_is_refused_and_changes_nothing as test_other_role_is_refused,
)
from tests.api.test_roles import (
    test_query_names_objects_of_another_organisation_in_vain as test_query_names_nothing_of_another_organisation,
)
from tests.api.test_roles import (
    test_reference_to_an_object_of_another_organisation_is_404 as test_reference_to_another_organisation_is_404,
)
from tests.api.test_roles import (
    test_role_is_allowed_what_the_matrix_says,
)
from tests.api.test_roles import (
    test_role_of_another_organisation_gets_what_the_matrix_says as test_role_of_another_organisation_gets_its_row,
)
from tests.databases import new_database
from tests.ledgers import Ledger, furnished, known_keys, signing_key
from tests.open_databases import open_database
from tests.persistence.dump import Dump
from tests.servers import LiveServer

pytestmark = [pytest.mark.soak, pytest.mark.both_databases]

__all__ = [
    "test_body_names_nothing_of_another_organisation",
    "test_missing_role_is_refused_first",
    "test_other_role_is_refused",
    "test_query_names_nothing_of_another_organisation",
    "test_reference_to_another_organisation_is_404",
    "test_role_is_allowed_what_the_matrix_says",
    "test_role_of_another_organisation_gets_its_row",
]

UPKEEP = {"deliveries", "receivers", "alerts", "account_usage_snapshots"}
"""Tables whose rows the service itself changes meanwhile: only their keys are compared."""
LAST_USE = metadata.tables["api_keys"].c.keys().index("last_used_at")


class LiveLedger(SeededLedger):
    """A seeded ledger whose service works in processes of its own."""

    def rows(self) -> Dump:
        """Every row, but for what the service writes by itself."""
        rows = super().rows()
        for name in UPKEEP:
            keys = [column.primary_key for column in metadata.tables[name].c]
            rows[name] = [
                tuple(value if key else None for value, key in zip(row, keys, strict=True)) for row in rows[name]
            ]
        used = [(*row[:LAST_USE], None, *row[LAST_USE + 1 :]) for row in rows["api_keys"]]
        return rows | {"api_keys": used}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, database_kind: str) -> Iterator[SeededLedger]:
    """One seeded ledger, served by two workers."""
    there: SeededLedger = furnished(database_kind, furnish)[0]
    folder = tmp_path_factory.mktemp("live")
    terms = {"SIGNING_KEY_FILE": str(signing_key()[0]), "CHECKPOINT_SECONDS": "0"}
    terms |= {"RATE_LIMIT_ANONYMOUS_PER_SECOND": "0", "RATE_LIMIT_SIGN_INS_PER_MINUTE": "0"}
    environment = {f"EPSILON_LEDGER_{name}": value for name, value in terms.items()}
    with (
        new_database(database_kind, folder, furnish=furnish) as url,
        LiveServer(folder, url, workers=2, environment=environment) as server,
        httpx2.Client(base_url=server.url, timeout=60, trust_env=False, verify=False) as http,
        open_database(url) as database,
    ):
        ledger = Ledger(http, database, dict(known_keys[url]))  # type: ignore[arg-type] # a client like that of the application
        fields = {name: getattr(there, name) for name in SeededLedger.__dataclass_fields__}
        yield replace(LiveLedger(**fields), ledger=ledger)
