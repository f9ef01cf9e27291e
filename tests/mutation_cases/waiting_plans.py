"""Rules of plans that wait."""

from tests.mutation_cases.case import Mutation

ALLOCATIONS = "tests/api/test_allocations.py"
KNOWN = "tests/service/test_known_plans.py"
WAITING = "tests/api/test_waiting_plans.py"
VERIFICATION = "tests/service/test_scheduling_verification.py"

CASES = (
    Mutation(
        "a plan that is left out is never tried again",
        "app/service/scheduling/lines.py",
        "                known.left.update(known.plans[each].path[:-1])\n",
        "                pass\n",
        (WAITING,),
        "tried_again and sqlite",
    ),
    Mutation(
        "a plan whose time is over keeps its turn",
        "app/service/scheduling/grants.py",
        "has_expired(waited, context.now):\n        raise ReservationStateConflictError(",
        "has_expired(waited, context.now):\n        return bool(",
        (WAITING,),
        "time_is_over and sqlite",
    ),
    Mutation(
        "a plan in another place lets nobody in",
        "app/service/scheduling/known_plans.py",
        "    for each in changed & known.rows.keys():",
        "    for each in ():",
        (WAITING,),
        "ends_the_turn and sqlite",
    ),
    Mutation(
        "a plan of a transaction that was rolled back is known for ever",
        "app/service/scheduling/known_plans.py",
        "        known.unsure = touched\n",
        "        known.unsure = set()\n",
        (KNOWN,),
        "rolled_back and sqlite",
    ),
    Mutation(
        "the log of a restored database is read on from where the lost one ended",
        "app/persistence/repositories/audit.py",
        "rows[0][:2] == (position, entry_hash)",
        "rows[0][0] == position",
        (KNOWN,),
        "restored and sqlite",
    ),
    Mutation(
        "who does not wait comes before those who do",
        "app/service/scheduling/arrivals.py",
        "if not contended or _is_next(tx, work, context, plan, withholdings):",
        "if plan:",
        (WAITING,),
        "does_not_wait_comes_after and sqlite",
    ),
    Mutation(
        "a plan waits that can never fit once its account opens",
        "app/service/scheduling/arrivals.py",
        "    if lacks and not never_fits(plan.path, plan.steps, withholdings):\n",
        "    if lacks and (later or not never_fits(plan.path, plan.steps, withholdings)):\n",
        (WAITING,),
        "never_fits and sqlite",
    ),
    Mutation(
        "a granted plan that nobody has claimed is forfeited",
        "app/ledger/reservations.py",
        "if reservation.status is ReservationStatus.ACTIVE and not reservation.is_claimed:",
        "if False:",
        (WAITING,),
        "never_claimed and sqlite",
    ),
    Mutation(
        "steps of no plan are admitted where plans share a budget",
        "app/service/charging/decision.py",
        "        require_plan_on(path)\n",
        "",
        (ALLOCATIONS,),
        "steps_of_plans_only and sqlite",
    ),
    Mutation(
        "steps of no plan are admitted by counting",
        "app/service/charging/decision.py",
        "if account.allocation is not None or (window",
        "if (window",
        (ALLOCATIONS,),
        "steps_of_plans_only and sqlite",
    ),
    Mutation(
        "a run that asks again unlocks another part",
        "app/persistence/repositories/waiting.py",
        "func.count(distinct(reservations.c.run_id))",
        "func.count(reservations.c.run_id)",
        (ALLOCATIONS,),
        "runs_that_ask and sqlite",
    ),
    Mutation(
        "a part is unlocked by the latest time that it may be",
        "app/service/scheduling/lines.py",
        "read_withholdings(tx, self.organisation_id, found.values(), earliest)",
        "read_withholdings(tx, self.organisation_id, found.values(), now)",
        (ALLOCATIONS,),
        "clock_that_is_not_sure and sqlite",
    ),
    Mutation(
        "a plan that waits is removed unnoticed",
        "app/service/verification/decision_chains.py",
        "            if reservation_id not in known:\n",
        "            if reservation_id not in known and known:\n",
        (VERIFICATION,),
        "forgotten_is_named and sqlite",
    ),
    Mutation(
        "the wait of a plan is not compared with the audit log",
        "app/service/verification/decision_chains.py",
        "sound = ended and found == (wait.wait_until, wait.priority, wait.granted_at)",
        "sound = ended",
        (VERIFICATION,),
        "behind_the_back and sqlite",
    ),
)
