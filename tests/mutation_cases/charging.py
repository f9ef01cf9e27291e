"""Rules of the commit path of a step."""

from tests.mutation_cases.case import Mutation

SEQUENCE = "tests/api/test_sequence.py"
STEPS = "tests/api/test_steps.py"
REPLICAS = "tests/reliability/test_replicas.py"
MODEL = "tests/reliability/test_state_machine.py"


CASES = (
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
        "a batch is charged in part although it should not be",
        "app/service/charging/deciding.py",
        "if request.on_exceed is OnExceed.TRUNCATE else 0",
        "if True else 0",
        (MODEL, STEPS),
    ),
    Mutation(
        "the parts beside a charge are forgotten",
        "app/service/charging/working.py",
        "exposed(whole, self._parts_of(organisation_id, path))",
        "exposed(whole, ())",
        ("tests/api/test_trees.py",),
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
        "steps are not held against policies",
        "app/service/charging/deciding.py",
        "    require_allowed(work, command, run, path, steps)\n",
        "    path = tuple(path)\n",
        ("tests/api/test_policies.py",),
    ),
)
