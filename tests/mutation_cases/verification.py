"""Rules of verification, checkpoints and the audit log."""

from tests.mutation_cases.case import Mutation

QUARANTINES = "tests/service/test_quarantine.py"
PLACED = "tests/service/test_placed_quarantines.py"

CASES = (
    Mutation(
        "a checkpoint stays that of a key that is no longer ours",
        "app/service/audit/checkpoints.py",
        "if signed_by == signer.key_id:",
        "if signed_by:",
        ("tests/api/test_checkpoints.py",),
    ),
    Mutation(
        "acts are not hashed again",
        "app/service/verification/audit_replay.py",
        "if audit_entry_hash(state.head, entry) != entry.entry_hash:",
        "if False:",
        ("tests/service/test_audit_verification.py",),
    ),
    Mutation(
        "a gap between the steps of a chain is not named",
        "app/service/verification/decision_chains.py",
        "        if entry.first_step != self.next_step:\n",
        "        if entry.first_step < self.next_step:\n",
        ("tests/service/test_chain_verification.py",),
    ),
    Mutation(
        "a further event of a decision is not hashed",
        "app/persistence/repositories/raw_rows.py",
        "                further += read_items(row, report=report)\n",
        "                pass\n",
        ("tests/service/test_chain_verification.py",),
    ),
    Mutation(
        "the indexes of a decision's items are not compared",
        "app/persistence/repositories/raw_rows.py",
        "        if [index for index, _, _ in further] != list(range(1, len(further) + 1)):\n",
        "        if False:\n",
        ("tests/service/test_item_verification.py",),
    ),
    Mutation(
        "what a checkpoint has signed is not compared",
        "app/service/verification/__init__.py",
        "    found += contradictions(audit.states, trusted)\n",
        "",
        ("tests/api/test_checkpoints.py", "tests/service/test_cli_verification.py"),
    ),
    Mutation(
        "an auditor who is bound to an account reads all audit events",
        "app/service/audit/queries.py",
        "within=context.principal.scope",
        "within=None",
        ("tests/api/test_audit_scopes.py",),
    ),
    Mutation(
        "a key that is bound to an account sees the decisions of all runs",
        "app/service/audit/queries.py",
        "    above = wanted.within or (context.principal.scope if run is None else None)\n",
        "    above = wanted.within\n",
        ("tests/api/test_decisions.py",),
    ),
    Mutation(
        "a run is recorded with its budgets in another order than they are kept",
        "app/service/runs/register.py",
        "for budget in budgets_of(path)])",
        "for budget in sorted(budgets_of(path), key=lambda budget: budget.name)])",
        ("tests/service/test_canonical_requests.py",),
    ),
    Mutation(
        "a session's row says what its cookie opens",
        "app/service/auth/sessions.py",
        "canonical([*caller, session.oidc_key_thumbprint, *times])",
        "canonical([])",
        ("tests/service/test_sessions.py",),
    ),
    Mutation(
        "a session whose row was changed is believed on",
        "app/service/auth/credential_cache.py",
        "found is None or found.session != known.session or not",
        "found is None or not",
        ("tests/service/test_sessions.py",),
    ),
    Mutation(
        "a cell that cannot be read ends the verification",
        "app/persistence/tolerant.py",
        """            except DAMAGED:
                undamaged =""",
        """            except DAMAGED:
                raise
                undamaged =""",
        ("tests/service/test_changed_cells.py",),
        "cannot_be_read",
    ),
    Mutation(
        "rows beside the accounts are not held against the audit log",
        "app/service/verification/record_replay.py",
        "if _cell(record.table, name, record.row) != value]",
        "if False]",
        ("tests/service/test_audit_verification.py",),
    ),
    Mutation(
        "what a run has declared is not verified",
        "app/service/verification/__init__.py",
        "run_audit_payload(run.event, run.expected_steps, run.declared_steps_per_hour) if run else {}",
        '{"event": run.event} if run else {}',
        ("tests/service/test_canonical_requests.py",),
    ),
    Mutation(
        "an account whose row is gone is not missed",
        "app/service/verification/__init__.py",
        "    _report_missing(audit, unseen)\n",
        "",
        ("tests/service/test_audit_verification.py",),
        "account_that_was_deleted and sqlite",
    ),
    Mutation(
        "a verification that finds nothing any more lifts a quarantine by itself",
        "app/service/verification/requests.py",
        "    return replace(found, quarantined=standing).revised(again)\n",
        """    for owner, each in replace(found, quarantined=standing).liftable:
        with db.write(owner) as tx:
            raw_rows.set_quarantine(tx, owner, {each: None}, now)
    return replace(found, quarantined=standing).revised(again)
""",
        (QUARANTINES,),
        "lets_writes_pass and not postgresql",
    ),
    Mutation(
        "a quarantine is placed without an entry of the audit log",
        "app/service/verification/requests.py",
        "for account_id, reason in previous.items() if recorded else ():",
        "for account_id, reason in ():",
        (PLACED,),
        "audit_log and not postgresql",
    ),
    Mutation(
        "an account is not stopped because the end of the chain cannot be read",
        "app/service/verification/requests.py",
        "    except (*DAMAGED, SQLAlchemyError) as error:\n",
        "    except ZeroDivisionError as error:\n",
        (PLACED,),
        "cannot_be_read and not postgresql",
    ),
    Mutation(
        "a quarantine that was deleted from its row is not found",
        "app/service/verification/audit_replay.py",
        "    if record.quarantine != recorded.quarantine:\n",
        "    if False:\n",
        (PLACED,),
        "clears_the_quarantine and not postgresql",
    ),
    Mutation(
        "what was found since a proposal is lifted with it",
        "app/service/governance/quarantines.py",
        "    if new:\n",
        "    if False:\n",
        (PLACED,),
        "found_since and not postgresql",
    ),
    Mutation(
        "how a run ended is not compared with the audit log",
        "app/service/verification/audit_replay.py",
        "if (run.end_reason, run.ended_at) != (recorded.end_reason, recorded.ended_at):",
        "if False:",
        ("tests/service/test_lost_runs.py",),
    ),
)
