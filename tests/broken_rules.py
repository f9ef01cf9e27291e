"""The mutations that `make mutations` tries: a line of the code, and what stands there instead."""

from dataclasses import dataclass

SEQUENCE = "tests/api/test_sequence.py"
STEPS = "tests/api/test_steps.py"
FAULTS = "tests/reliability/test_faults.py"
REPLICAS = "tests/reliability/test_replicas.py"
MODEL = "tests/reliability/test_state_machine.py"
ADMISSION = "tests/ledger/test_admission.py"
CURVES = "tests/accounting/test_curves.py"
ENGINE = "tests/persistence/test_engine.py"


@dataclass(frozen=True)
class Mutation:
    """One rule, broken.

    Args:
        name: what is broken.
        file: where.
        line: what stands there; it must stand there once.
        instead: what is put there.
        tests: that must fail then.
        only: of these tests, by pytest's -k.
    """

    name: str
    file: str
    line: str
    instead: str
    tests: tuple[str, ...]
    only: str = "sqlite or not postgresql"


MUTATIONS = (
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
        "_LOCKED = _SEEN.with_for_update(key_share=True)",
        "_LOCKED = _SEEN",
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
        "a commit that failed counts as done",
        "app/persistence/engine.py",
        "            raise LedgerUnavailableError(_IN_DOUBT) from error\n        raise\n",
        "            raise LedgerUnavailableError(_IN_DOUBT) from error\n",
        (FAULTS,),
    ),
    Mutation(
        "the key is claimed before the write",
        "app/service/idempotency.py",
        "            made = create(tx, ready)\n",
        "            from app.service.pricing import UnpreparedError\n"
        "            if identity.key is not None:\n"
        '                claim = replies.Reply(identity.fingerprint, "{}", CREATED)\n'
        "                replies.add(tx, call.organisation_id, identity.key, claim, call.now)\n"
        "                tx.exec_driver_sql('COMMIT')\n"
        "                tx.exec_driver_sql('BEGIN')\n"
        "            claims = \"DELETE FROM replies WHERE body = '{}'\"\n"
        "            try:\n"
        "                made = create(tx, ready)\n"
        "            except UnpreparedError:\n"
        "                tx.exec_driver_sql(claims)\n"
        "                tx.exec_driver_sql('COMMIT')\n"
        "                raise\n"
        "            tx.exec_driver_sql(claims)\n",
        (FAULTS,),
    ),
    Mutation(
        "a price that a restore has lost is believed",
        "app/service/charging/saving.py",
        "for kept, remembered in work.listed.items() if work.changed else ():",
        "for kept, remembered in work.listed.items() if False else ():",
        ("tests/service/test_restored.py",),
    ),
    Mutation(
        "what is remembered is believed",
        "app/service/charging/loading.py",
        "if record is None or not record.is_what(seen):",
        "if record is None:",
        (REPLICAS,),
    ),
    Mutation(
        "steps are not looked up among earlier answers",
        "app/service/charging/deciding.py",
        "    if earlier is not None:\n",
        "    if earlier is not None and False:\n",
        (SEQUENCE,),
    ),
    Mutation(
        "a key is not compared with its first request",
        "app/service/charging/deciding.py",
        "if pinned.request_fingerprint != asked or not (same_teller and same_place):",
        "if False:",
        (SEQUENCE,),
    ),
    Mutation(
        "steps may leave a gap",
        "app/service/charging/deciding.py",
        "    require_no_gap(run, request.first_step)\n",
        "",
        (SEQUENCE,),
    ),
    Mutation(
        "a paused run takes steps",
        "app/service/charging/deciding.py",
        "        require_active(run)\n",
        "        pass\n",
        ("tests/api/test_run_states.py",),
    ),
    Mutation(
        "an attempt that was superseded takes steps",
        "app/service/charging/deciding.py",
        "        require_attempt(run, request.attempt)\n        require_active(run)\n",
        "        require_active(run)\n",
        ("tests/api",),
        "attempt and not postgresql",
    ),
    Mutation(
        "an ancestor is skipped by the decision",
        "app/ledger/admission.py",
        "remaining, binding = fewest(accounts, (new,), steps[-1].curve)",
        "remaining, binding = fewest(accounts[1:], (new,), steps[-1].curve)",
        (ADMISSION, MODEL),
    ),
    Mutation(
        "an ancestor is skipped by the charge",
        "app/ledger/admission.py",
        "afterwards = tuple(account.charged(new) for account in accounts)",
        "afterwards = (accounts[0], *(account.charged(new) for account in accounts[1:]))",
        (ADMISSION, MODEL),
    ),
    Mutation(
        "one step too many is admitted",
        "app/ledger/admission.py",
        "overdrawn=remaining < 0",
        "overdrawn=remaining < -1",
        (ADMISSION, MODEL),
    ),
    Mutation(
        "an event that was charged again counts once",
        "app/persistence/repositories/balances.py",
        "counted[key] = (times + count, ",
        "counted[key] = (count, ",
        ("tests/service/test_balances.py",),
    ),
    Mutation(
        "what is held does not count",
        "app/ledger/gates.py",
        "        for curve in taken[1:]:\n",
        "        for curve in taken[2:]:\n",
        ("tests/ledger", MODEL),
    ),
    Mutation(
        "curves are rounded down",
        "app/accounting/curves.py",
        "units = np.ceil(np.minimum(rdp, EXHAUSTED * UNIT) * SAFETY / UNIT)",
        "units = np.floor(np.minimum(rdp, EXHAUSTED * UNIT) * SAFETY / UNIT)",
        (CURVES,),
    ),
    Mutation(
        "thresholds are rounded up",
        "app/accounting/conversion.py",
        "units = np.floor((epsilon + reward - price - error) / UNIT)",
        "units = np.ceil((epsilon + reward - price + error) / UNIT)",
        ("tests/accounting/test_conversion.py", "tests/ledger/test_filters.py"),
    ),
    Mutation(
        "NaN is a number",
        "app/api/strict.py",
        "parse_constant=_constant",
        "parse_constant=float",
        ("tests/api/test_strict.py",),
    ),
    Mutation(
        "of two equal keys of an object the last one counts",
        "app/api/strict.py",
        "object_pairs_hook=_object, ",
        "",
        ("tests/api/test_bad_requests.py", "tests/api/test_bad_bodies.py"),
    ),
    Mutation(
        "a batch is charged in part although it should not be",
        "app/service/charging/deciding.py",
        "if request.on_exceed is OnExceed.TRUNCATE else 0",
        "if True else 0",
        (MODEL, STEPS),
    ),
    Mutation(
        "a race that was lost is not run again",
        "app/persistence/engine.py",
        "MAX_TRIES = 5",
        "MAX_TRIES = 1",
        (ENGINE, REPLICAS),
        "postgresql",
    ),
    Mutation(
        "under replace_one the largest part alone counts",
        "app/ledger/accounts.py",
        "self.partitions_per_unit * (2 if self.relation is NeighboringRelation.REPLACE_ONE else 1)",
        "self.partitions_per_unit",
        ("tests/ledger/test_composition.py", "tests/api/test_trees.py"),
    ),
    Mutation(
        "the parts beside a charge are forgotten",
        "app/service/charging/working.py",
        "exposed(whole, self._parts_of(organisation_id, path))",
        "exposed(whole, ())",
        ("tests/api/test_trees.py",),
    ),
    Mutation(
        "a part that is over the limit stops itself only",
        "app/ledger/accounts.py",
        "room = np.where(room < 0, room, EXHAUSTED)",
        "room = np.full_like(room, EXHAUSTED)",
        ("tests/ledger/test_composition.py", "tests/api/test_trees.py"),
    ),
    Mutation(
        "a plan outlives the window of its budget",
        "app/service/charging/deciding.py",
        "    require_open(path, command.now)\n    own = path[-1]",
        "    own = path[-1]",
        ("tests/api/test_windows.py",),
    ),
    Mutation(
        "a part that is not proven stops itself only",
        "app/service/charging/working.py",
        "if record.quarantine is not None:  # what the whole",
        "if False:  # what the whole",
        ("tests/service/test_composed_verification.py",),
    ),
    Mutation(
        "what is held is taken out of the whole, whichever part is the largest",
        "app/service/charging/ending.py",
        "after[account.id] = of_children(account, map(now, children))",
        "after[account.id] = account.settled(spent, taken_out(account.held, reserved))",
        ("tests/api/test_trees.py", "tests/service/test_composed_histories.py"),
    ),
    Mutation(
        "whoever proposes approves",
        "app/service/governance/proposals.py",
        "if heirs(tx, call.organisation_id, ours) & theirs or heirs(tx, call.organisation_id, theirs) & ours:",
        "if False:",
        ("tests/api/test_limits.py", "tests/api/test_approvals.py"),
    ),
    Mutation(
        "an officer does away with the second person",
        "app/service/governance/policies.py",
        "if rule is not None and call.caller.role is not Role.ADMIN:",
        "if False:",
        ("tests/api/test_policies.py",),
    ),
    Mutation(
        "a sweep's run takes further steps",
        "app/service/experiments.py",
        "    work.move(call.organisation_id, replace(charged, status=RunStatus.COMPLETED))\n",
        "",
        ("tests/api/test_experiments.py",),
    ),
    Mutation(
        "one person raises a limit",
        "app/service/governance/limits.py",
        "if is_raised(limit, request.limit) and not one_is_enough(call, [each.account for each in path]):",
        "if False:",
        ("tests/api/test_limits.py",),
    ),
    Mutation(
        "a role that is bound to an account reaches all",
        "app/service/asking/call.py",
        "if self.caller.scope is not None and self.caller.scope not in path:",
        "if False:",
        ("tests/api/test_keys.py",),
    ),
    Mutation(
        "a checkpoint stays that of a key that is no longer ours",
        "app/service/proof/checkpoints.py",
        "if signed_by == signer.key_id:",
        "if signed_by:",
        ("tests/api/test_checkpoints.py",),
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
        "a withdrawn key is believed for ever",
        "app/service/asking/keyring.py",
        "if known is None or now - known.seen_at >= BELIEVED_SECONDS:",
        "if known is None:",
        ("tests/api/test_keys.py", "tests/api/test_auth.py"),
    ),
    Mutation(
        "steps are not held against policies",
        "app/service/charging/deciding.py",
        "    require_allowed(work, command, run, path, steps)\n",
        "    path = tuple(path)\n",
        ("tests/api/test_policies.py",),
    ),
    Mutation(
        "a policy beneath another makes it looser",
        "app/ledger/policies.py",
        "    return reduce(stricter, beneath, base)",
        "    return stricter(base, beneath[-1]) if beneath else base",
        ("tests/ledger/test_policies.py",),
    ),
    Mutation(
        "a run above the threshold begins at once",
        "app/service/registering.py",
        "RunStatus.PENDING if needs_approval(path, size) else RunStatus.ACTIVE",
        "RunStatus.ACTIVE",
        ("tests/api/test_approvals.py",),
    ),
    Mutation(
        "a sweep has as many trials as are expected",
        "app/accounting/formulas/repetitions.py",
        "    return above",
        "    return round(mean)",
        ("tests/accounting/test_repetitions.py",),
    ),
    Mutation(
        "a sweep that does not fit stays",
        "app/service/experiments.py",
        "            before.rollback()\n",
        "            before.commit()\n",
        ("tests/api/test_experiments.py",),
    ),
    Mutation(
        "acts are not hashed again",
        "app/service/verification/terms.py",
        "if act_hash(told.head, act.entry) != act.entry_hash:",
        "if False:",
        ("tests/service/test_act_verification.py",),
    ),
    Mutation(
        "PostgreSQL's walls do not stand for the tables' owner",
        "migrations/versions/0008_rows_have_walls.py",
        'op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")',
        "del column, table",
        ("tests/persistence/test_walls.py",),
        "postgresql",
    ),
    Mutation(
        "alerts are sent to private addresses",
        "app/service/alerts/guard.py",
        "    return found.is_global and not any(found in network for network in _MORE_THAN_PRIVATE)",
        "    return True",
        ("tests/service/test_alert_guard.py",),
    ),
    Mutation(
        "what a checkpoint has signed is not compared",
        "app/service/verification/__init__.py",
        "    wrong += contradictions(audit.told, known)\n",
        "",
        ("tests/api/test_checkpoints.py", "tests/service/test_cli_proofs.py"),
    ),
    Mutation(
        "an auditor who is bound to an account reads all acts",
        "app/service/proof/auditing.py",
        "within=call.caller.scope",
        "within=None",
        ("tests/api/test_audit_scopes.py",),
    ),
    Mutation(
        "a key that is bound to an account sees the decisions of all runs",
        "app/service/proof/auditing.py",
        "    above = query.account or (call.caller.scope if run is None else None)\n",
        "    above = query.account\n",
        ("tests/api/test_decisions.py",),
    ),
    Mutation(
        "a proposal of another organisation is found",
        "app/persistence/repositories/proposals.py",
        "    here = (proposals.c.organisation_id == organisation_id) & (proposals.c.id == proposal_id)\n",
        "    here = proposals.c.id == proposal_id\n",
        ("tests/api/test_matrix.py",),
    ),
    Mutation(
        "another limit of a run is held against its first population only",
        "app/service/governance/limits.py",
        "    for population in _populations(path):\n        after =",
        "    for population in _populations(path)[:1]:\n        after =",
        ("tests/api/test_limits.py",),
    ),
    Mutation(
        "metrics name organisations to whoever asks",
        "app/api/routers/metrics.py",
        "named = 0 if token is None else request.app.state.metrics_top_accounts",
        "named = request.app.state.metrics_top_accounts",
        ("tests/api/test_metrics.py",),
    ),
    Mutation(
        "metrics are told without their token",
        "app/api/routers/metrics.py",
        "    if token is not None:\n",
        "    if token is None:\n",
        ("tests/api/test_metrics.py",),
    ),
    Mutation(
        "who keeps a connection is cut off at once when the service stops",
        "app/serving.py",
        "        await self._hear_out(ends_at)\n",
        "",
        ("tests/reliability/test_shutdown.py",),
    ),
    Mutation(
        "a process that stops is ready",
        "app/api/routers/health.py",
        "    if getattr(request.state, STOPPING, False):\n",
        "    if False:\n",
        ("tests/reliability/test_shutdown.py",),
    ),
    Mutation(
        "a chain that ends with another decision is not noticed",
        "app/persistence/repositories/watched.py",
        "decisions.c.entry_hash != runs.c.chain_head",
        "decisions.c.entry_hash == None",
        ("tests/api/test_readiness.py",),
    ),
    Mutation(
        "spans hold the keys that stood in a URL",
        "app/telemetry.py",
        "span.set_attribute(name, without_secrets(said))",
        "span.set_attribute(name, said)",
        ("tests/api/test_traces.py",),
    ),
    Mutation(
        "a browser's session is taken without a page's token",
        "app/api/sessions.py",
        '        require_token(cookie, request.headers.get(TOKEN_HEADER, ""))\n',
        "",
        ("tests/api/test_browser_sessions.py",),
    ),
    Mutation(
        "a browser's session is taken from another site",
        "app/api/sessions.py",
        "        require_own_page(request)\n",
        "",
        ("tests/api/test_browser_sessions.py",),
    ),
    Mutation(
        "a browser's session outlives its key, and its organisation",
        "app/service/asking/sessions.py",
        "if key is None or key.organisation_id != session.organisation_id or key.trouble(now) is not None:",
        "if key is None:",
        ("tests/service/test_sessions.py",),
    ),
    Mutation(
        "an identity provider's answer to another browser signs in",
        "app/service/asking/openid/flow.py",
        "if flow is None or not compare_digest(flow.state.encode(), state.encode()):",
        "if flow is None:",
        ("tests/dashboard/test_openid_sign_in.py",),
    ),
    Mutation(
        "an identity provider's token for another sign-in signs in",
        "app/service/asking/openid/tokens.py",
        "if not isinstance(told, str) or not compare_digest(told.encode(), nonce.encode()):",
        "if False:",
        ("tests/dashboard/test_openid_sign_in.py",),
    ),
    Mutation(
        "an identity provider's answer is taken twice",
        "app/dashboard/openid.py",
        '    keep_cookie(request, reply, FLOW_COOKIE, "", seconds=0)  # an answer is taken once\n',
        "",
        ("tests/dashboard/test_openid_sign_in.py",),
    ),
)
