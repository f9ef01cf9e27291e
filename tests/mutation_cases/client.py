"""Rules of the client: one sample for each release, and its charge before it."""

from tests.mutation_cases.case import Mutation

SOURCE = "sdk/src/epsilon_ledger"
SAMPLES = "tests/sdk/ecosystems/test_opacus_samples.py"
LATE = "tests/sdk/ecosystems/test_opacus_late.py"
SAMPLING = "tests/sdk/ecosystems/test_opacus_sampling.py"
SHARED = "tests/sdk/ecosystems/test_opacus_shared_samples.py"
MACHINE = "tests/sdk/ecosystems/test_opacus_machine.py"
LIGHTNING = "tests/sdk/ecosystems/test_lightning.py"


CASES = (
    Mutation(
        "a sample is released twice",
        f"{SOURCE}/_opacus/guard.py",
        "if self.amplified and draw.unreleased is not None and not draw.unreleased.get(self._optimizer):",
        "if False:",
        (SAMPLES,),
    ),
    Mutation(
        "what is left of a batch is added to the next iteration's",
        f"{SOURCE}/_opacus/samples.py",
        "            consumer.require_nothing_open()\n",
        "            pass\n",
        (SAMPLES,),
    ),
    Mutation(
        "a sum of several draws is released",
        f"{SOURCE}/_opacus/guard.py",
        "elif draw is not self._open:",
        "elif False:",
        (SAMPLES,),
    ),
    Mutation(
        "a gradient may be of fewer records than were drawn",
        f"{SOURCE}/_opacus/guard.py",
        "if found > most or (releasing and found < physical.size):",
        "if found > most:",
        (SAMPLES,),
    ),
    Mutation(
        "a gradient may be of more records than were drawn",
        f"{SOURCE}/_opacus/guard.py",
        "if found > most or (releasing and found < physical.size):",
        "if releasing and found < physical.size:",
        (SAMPLES,),
    ),
    Mutation(
        "a piece may hold records of another batch",
        f"{SOURCE}/_opacus/guard.py",
        "found = rows if physical.split else self._rows",
        "found = self._rows",
        (SAMPLES,),
    ),
    Mutation(
        "pieces are left out and stepped again",
        f"{SOURCE}/_opacus/guard.py",
        "if physical.split and physical.index != self._stepped:",
        "if False:",
        (SAMPLES,),
    ),
    Mutation(
        "the clipping norm moves between the pieces of a batch",
        f"{SOURCE}/_opacus/guard.py",
        "if clipped_to != self._clipped_to:",
        "if False:",
        (SAMPLES,),
    ),
    Mutation(
        "what workers drew ahead counts as handed out",
        f"{SOURCE}/_opacus/loaders.py",
        "            if self._delivers:\n",
        "            if True:\n",
        (SAMPLES,),
    ),
    Mutation(
        "a sample's charge covers one of its releases",
        f"{SOURCE}/_opacus/hook.py",
        "[step if member is optimizer else mechanism_of(member)] * self._releases",
        "[step if member is optimizer else mechanism_of(member)]",
        (SHARED,),
    ),
    Mutation(
        "noise moves after its sample was charged",
        f"{SOURCE}/_opacus/hook.py",
        "        if left[0] != step:\n",
        "        if False:\n",
        (SHARED,),
    ),
    Mutation(
        "the module's norm is not compared with the noise",
        f"{SOURCE}/_opacus/guard.py",
        "if last[1] != float(expected):",
        "if False:",
        (LATE,),
    ),
    Mutation(
        "steps before a late attach are passed over",
        f"{SOURCE}/_opacus/attachment.py",
        'if not steps or options.earlier_steps == "charged":',
        "if True:",
        (LATE,),
    ),
    Mutation(
        "a stated sampling probability is believed when it is attached",
        f"{SOURCE}/_opacus/attachment.py",
        "if stated is not None and stated < rate:",
        "if False:",
        (SAMPLING,),
    ),
    Mutation(
        "a stated sampling probability is believed at each step",
        f"{SOURCE}/_opacus/hook.py",
        "if known is not None and stated is not None and stated < known:",
        "if False:",
        (SAMPLING,),
    ),
    Mutation(
        "Lightning's optimizers are charged apart",
        f"{SOURCE}/lightning.py",
        "        attach(private, self.run, **how)\n",
        "        for one in private:\n            attach(one, self.run, **how)\n",
        (LIGHTNING,),
    ),
    Mutation(
        "Lightning cuts batches in pieces off",
        f"{SOURCE}/lightning.py",
        '        _require_whole_batches(how["data_loader"])\n',
        "",
        (LIGHTNING,),
    ),
    Mutation(
        "a rank leaves its empty parts out",
        f"{SOURCE}/_opacus/loaders.py",
        "    if isinstance(sampler, DistributedUniformWithReplacementSampler):\n",
        "    if False:\n",
        (MACHINE,),
        "two_processes",
    ),
    Mutation(
        "ranks release parts of different draws",
        f"{SOURCE}/_opacus/ranks.py",
        "if any(verdict.needed for verdict in verdicts) and (None in places or len(set(places)) > 1):",
        "if False:",
        (MACHINE,),
        "two_processes",
    ),
    Mutation(
        "two threads step one numpy sample",
        f"{SOURCE}/mechanisms/training.py",
        "if not lock.acquire(blocking=False):",
        "if not (lock.acquire(blocking=False) or True):",
        ("tests/sdk/mechanisms/test_training.py",),
    ),
    Mutation(
        "the monitor counts the steps of its own process only",
        "sdk/src/epsilon_ledger/monitor.py",
        "known = None if self.run is None else self.run.step",
        "known = None",
        ("tests/sdk/test_monitor.py",),
    ),
    Mutation(
        "a schedule goes on at the ledger's number",
        "sdk/src/epsilon_ledger/_run/run_factory.py",
        "    if step is None and schedule is not None:",
        "    if step is None and schedule is not None and False:",
        ("tests/sdk/test_resume.py",),
    ),
    Mutation(
        "a noise scheduler stops a training whose answer was lost",
        "sdk/src/epsilon_ledger/_opacus/hook.py",
        '                cast("Run", self.run).settle()',
        "                raise",
        ("tests/sdk/ecosystems/test_opacus_steps.py",),
    ),
    Mutation(
        "threads share a trial without a lock",
        "sdk/src/epsilon_ledger/_run/trials.py",
        "        with self._lock:\n            self._take(count, event)",
        "        self._take(count, event)",
        ("tests/sdk/test_trials.py",),
    ),
    Mutation(
        "a request for a secret is repeated although it may have had an effect",
        f"{SOURCE}/_net/transport.py",
        "if final or (request.in_doubt and not request.is_repeatable):",
        "if final:",
        ("tests/sdk/test_secrets.py",),
    ),
    Mutation(
        "a link with credentials is sent to the ledger",
        f"{SOURCE}/_run/provenance.py",
        '"@" not in parts.netloc',
        "True",
        ("tests/sdk/test_provenance.py",),
    ),
    Mutation(
        "a limit is changed whatever another person did",
        f"{SOURCE}/_wire/endpoints/governance.py",
        "    response = yield post(url, body, if_match=tag_of(if_match))",
        '    response = yield post(url, body, if_match="*")',
        ("tests/sdk/test_operations.py",),
    ),
    Mutation(
        "a path of several runs names the newest",
        f"{SOURCE}/_wire/references.py",
        "if len(found.items) > 1:",
        "if False:",
        ("tests/sdk/test_lookups.py",),
    ),
)
