"""Rules of the databases: locks, durability, tenants."""

from tests.mutation_cases.case import Mutation

FAULTS = "tests/reliability/test_faults.py"
REPLICAS = "tests/reliability/test_replicas.py"
ENGINE = "tests/persistence/test_database.py"
LISTS = "tests/persistence/test_decision_lists.py"


CASES = (
    Mutation(
        "a ledger is copied while it is served",
        "app/commands/verification.py",
        "        require_unused(old)\n",
        "",
        ("tests/service/test_database_copy.py",),
        "served",
    ),
    Mutation(
        "SQLite's writers do not lock",
        "app/persistence/sqlite.py",
        'WRITE: Final = "BEGIN IMMEDIATE"',
        'WRITE: Final = "BEGIN"',
        (ENGINE, REPLICAS),
    ),
    Mutation(
        "PostgreSQL's writers do not lock the accounts",
        "app/persistence/repositories/locks.py",
        "_LOCKED = _READ.with_for_update(key_share=True)",
        "_LOCKED = _READ",
        (REPLICAS,),
        "postgresql",
    ),
    Mutation(
        "SQLite does not wait for the disk",
        "app/persistence/sqlite.py",
        '"synchronous = FULL"',
        '"synchronous = OFF"',
        (ENGINE,),
    ),
    Mutation(
        "PostgreSQL does not wait for the disk",
        "app/persistence/postgresql.py",
        "ELSE 'on' END",
        "ELSE 'off' END",
        ("tests/persistence/test_sessions.py",),
        "postgresql",
    ),
    Mutation(
        "a pooled transaction has the settings of another client",
        "app/persistence/engines.py",
        "    if statement and (settings := options.get(SETTINGS)):\n",
        "    if statement and (settings := None):\n",
        ("tests/persistence/test_sessions.py",),
        "postgresql",
    ),
    Mutation(
        "a pooled pipeline has the settings of another client",
        "app/persistence/pipeline.py",
        "            self.send(self._settings.encode())\n",
        "            pass\n",
        ("tests/persistence/test_sessions.py",),
        "postgresql",
    ),
    Mutation(
        "a backup of another history counts as verified",
        "app/service/backups.py",
        "where(*same)) != head:",
        "where(*same)) is None:",
        ("tests/service/test_backup_verification.py",),
        "another_history",
    ),
    Mutation(
        "a commit that failed counts as done on SQLite",
        "app/persistence/sqlite_writer.py",
        "its transaction may still be open\n            raise\n",
        "its transaction may still be open\n",
        (FAULTS,),
    ),
    Mutation(
        "a commit that failed counts as done on PostgreSQL",
        "app/persistence/database.py",
        "            raise LedgerUnavailableError(IN_DOUBT) from error\n        raise\n",
        "            raise LedgerUnavailableError(IN_DOUBT) from error\n",
        (FAULTS,),
        "postgresql",
    ),
    Mutation(
        "a commit that a worker of Citus does not answer counts as undone",
        "app/persistence/postgresql.py",
        "return citus and sqlstate not in RACES_LOST",
        "return False",
        ("tests/persistence/test_citus.py",),
    ),
    Mutation(
        "rows that Citus does not write are not noticed",
        "app/persistence/bulk.py",
        "return _FromArrays(_required(str(statement.compile(dialect=dialect)), names[place]), self._writers, place)",
        "return _FromArrays(str(statement.compile(dialect=dialect)), self._writers, place)",
        ("tests/persistence/test_citus.py",),
    ),
    Mutation(
        "a dead worker of Citus stops the upkeep of all",
        "app/service/due_work.py",
        "        if not distributed:\n            raise\n",
        "        raise\n",
        ("tests/service/test_due_work.py",),
    ),
    Mutation(
        "a migration that a service deadlocks with is not run again",
        "app/persistence/database.py",
        "self.migration() as tx:\n                return work(tx)\n\n        return self.retried(attempt)\n",
        "self.migration() as tx:\n                return work(tx)\n\n        return attempt()\n",
        ("tests/persistence/test_sessions.py",),
        "deadlocks",
    ),
    Mutation(
        "the key is claimed before the write",
        "app/service/idempotency.py",
        "            response = effect(tx)\n",
        "            from app.service.costing import CostNotReadyError\n"
        '            claim = idempotent_responses.Reply(fingerprint, "{}", 201)\n'
        "            idempotent_responses.add(tx, context.organisation_id, key, claim, context.now)\n"
        "            tx.exec_driver_sql('COMMIT')\n"
        "            tx.exec_driver_sql('BEGIN')\n"
        "            claims = \"DELETE FROM idempotent_responses WHERE body = '{}'\"\n"
        "            try:\n"
        "                response = effect(tx)\n"
        "            except CostNotReadyError:\n"
        "                tx.exec_driver_sql(claims)\n"
        "                tx.exec_driver_sql('COMMIT')\n"
        "                raise\n"
        "            tx.exec_driver_sql(claims)\n",
        (FAULTS,),
    ),
    Mutation(
        "an event that was charged again counts once",
        "app/ledger/account_records.py",
        "counted[key] = (times + count, ",
        "counted[key] = (count, ",
        ("tests/service/test_balances.py",),
    ),
    Mutation(
        "a race that was lost is not run again",
        "app/persistence/database.py",
        "MAX_TRIES = 5",
        "MAX_TRIES = 1",
        (ENGINE, REPLICAS),
        "postgresql",
    ),
    Mutation(
        "a password is read once and kept",
        "app/persistence/postgresql.py",
        'if "password" in parameters:',
        'if parameters.setdefault("password", "first"):',
        ("tests/persistence/test_passwords.py",),
        "postgresql",
    ),
    Mutation(
        "PostgreSQL's walls do not stand for the tables' owner",
        "migrations/versions/0001_initial.py",
        '    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")',
        "    pass",
        ("tests/persistence/test_row_level_security.py",),
        "postgresql",
    ),
    Mutation(
        "a proposal of another organisation is found",
        "app/persistence/repositories/expressions.py",
        "self.select(organisation_id, id=record_id)",
        "self.select(None, id=record_id)",
        ("tests/api/test_matrix.py",),
    ),
    Mutation(
        "a chain that ends with another decision is not noticed",
        "app/persistence/repositories/periodic_queries.py",
        "decisions.c.entry_hash != runs.c.chain_head",
        "decisions.c.entry_hash == None",
        ("tests/api/test_readiness.py",),
    ),
    Mutation(
        "a role's row_security = off refuses every step",
        "app/persistence/postgresql.py",
        '"row_security": "\'on\'",',
        '"row_security": "current_setting(\'row_security\')",',
        ("tests/persistence/test_rehearsal.py",),
        "postgresql",
    ),
    Mutation(
        "a rehearsed row of SQLite's does not reach the log, so that a full disk is not noticed",
        "app/persistence/sqlite.py",
        "_CACHE if keeping else _NO_CACHE,",
        "_CACHE,",
        ("tests/persistence/test_rehearsal.py",),
    ),
    Mutation(
        "a rehearsal asks for no room on PostgreSQL's disk",
        "app/persistence/postgresql.py",
        "        _ROOM_ON_DISK,\n",
        "",
        ("tests/persistence/test_rehearsal.py",),
        "full_disk_under_a_server",
    ),
    Mutation(
        "a table of another owner is not noticed",
        "app/persistence/postgresql.py",
        '    connection.exec_driver_sql("; ".join(asked))',
        '    connection.exec_driver_sql("; ".join(asked[:3]))',
        ("tests/persistence/test_rehearsal.py",),
        "owner or right",
    ),
    Mutation(
        "SQL takes two decisions of the same first step",
        "migrations/versions/0001_initial.py",
        "        where=\"outcome IN ('admitted', 'reported')\",\n        unique=True,\n",
        "        where=\"outcome IN ('admitted', 'reported')\",\n",
        ("tests/persistence/test_constraints.py",),
    ),
    Mutation(
        "a rehearsal waits for another one",
        "app/persistence/rehearsal.py",
        "unused or id_of(secrets.randbits(BITS))",
        "unused or id_of(BITS)",
        ("tests/persistence/test_rehearsal.py",),
        "wait_for_each_other",
    ),
    Mutation(
        "an id in capitals is stored as another one",
        "app/ledger/ids.py",
        'frozenset("0123456789abcdef")',
        'frozenset("0123456789abcdefABCDEF")',
        ("tests/ledger/test_ids.py",),
    ),
    Mutation(
        "a text that is no id is stored as the least one",
        "app/ledger/ids.py",
        "NO_NUMBER: Final = -1",
        "NO_NUMBER: Final = 0",
        ("tests/ledger/test_ids.py",),
    ),
    Mutation(
        "SQL gives the id of an integer another prefix",
        "app/persistence/repositories/expressions.py",
        "WHEN {place} THEN",
        "WHEN {place + 1} THEN",
        ("tests/persistence/test_stored_ids.py",),
    ),
    Mutation(
        "the row of a rehearsal stays",
        "app/persistence/database.py",
        "writes=True).begin()\n            yield connection\n",
        "writes=True).begin()\n            yield connection\n            connection.commit()\n",
        ("tests/persistence/test_rehearsal.py",),
    ),
    Mutation(
        "another actor's decision begins no range",
        "app/service/charging/unit_of_work.py",
        "if entry.actor != run.last_actor or last is None",
        "if last is None",
        (LISTS,),
        "begins and not postgresql",
    ),
    Mutation(
        "a decision before the last one's time begins no range",
        "app/service/charging/unit_of_work.py",
        " or entry.created_at < last:",
        ":",
        (LISTS,),
        "begins and not postgresql",
    ),
    Mutation(
        "ranges of decisions are not verified",
        "app/service/verification/decision_chains.py",
        "if not self.broken and self.ranges != self.run.ranges:",
        "if False:",
        ("tests/service/test_verification.py",),
        "tampered and range and not postgresql",
    ),
    Mutation(
        "the recent decisions of a list pass for all",
        "app/persistence/repositories/decision_lists.py",
        "_recent_since(organisation_id, wanted, behind))\n",
        "_recent_since(organisation_id, wanted, behind))\n        return\n",
        (LISTS,),
        "pages and not postgresql",
    ),
    Mutation(
        "a range ends with its run",
        "app/persistence/repositories/decision_lists.py",
        "end = func.coalesce(next_start, runs.c.decision_count)",
        "end = runs.c.decision_count",
        (LISTS,),
        "pages and not postgresql",
    ),
    Mutation(
        "a range is cut off one decision late",
        "app/persistence/repositories/decision_lists.py",
        'found.c.low.label("end")',
        '(found.c.low + 1).label("end")',
        (LISTS,),
        "pages and not postgresql",
    ),
)
