"""Rules of the trainers' client."""

from tests.mutation_cases.case import Mutation

CASES = (
    Mutation(
        "the monitor counts the steps of its own process only",
        "sdk/src/epsilon_ledger/monitor.py",
        "known = None if self.run is None else self.run.step",
        "known = None",
        ("tests/sdk/test_monitor.py",),
    ),
    Mutation(
        "a schedule goes on at the ledger's number",
        "sdk/src/epsilon_ledger/_running/openings.py",
        "    if step is None and schedule is not None:",
        "    if step is None and schedule is not None and False:",
        ("tests/sdk/test_resume.py",),
    ),
    Mutation(
        "a noise scheduler stops a training whose answer was lost",
        "sdk/src/epsilon_ledger/_opacus/hook.py",
        '            cast("Run", self.run).settle()',
        "            raise",
        ("tests/sdk/ecosystems/test_opacus_steps.py",),
    ),
    Mutation(
        "threads share a trial without a lock",
        "sdk/src/epsilon_ledger/_running/trials.py",
        "        with self._lock:\n            self._take(count, event)",
        "        self._take(count, event)",
        ("tests/sdk/test_trials.py",),
    ),
)
