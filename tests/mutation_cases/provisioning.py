"""Rules of files that are applied to a server."""

from tests.mutation_cases.case import Mutation

PLANNER = ("tests/provisioning/test_planner.py",)
APPLY = ("tests/provisioning/test_apply.py",)
YAML = ("tests/provisioning/test_yaml_text.py",)

CASES = (
    Mutation(
        "a file raises a limit without being asked",
        "app/provisioning/planner.py",
        "        if is_raised(Limit(**before), Limit(**after)):",
        "        if False:",
        PLANNER,
        "raised_in_either",
    ),
    Mutation(
        "a removed threshold lowers nothing",
        "app/provisioning/planner.py",
        'if removed := sorted(set(before["thresholds"]) - set(after["thresholds"])):',
        "if removed := []:",
        PLANNER,
        "fewer_alerts",
    ),
    Mutation(
        "the organisation's policy has the defaults of an account",
        "app/provisioning/planner.py",
        "of_organisation=account is None)",
        "of_organisation=False)",
        PLANNER,
        "one_person",
    ),
    Mutation(
        "what is proposed already is proposed again",
        "app/provisioning/planner.py",
        "[each for each in self._state.proposals if (each.kind, each.account) == (kind, account)]",
        "[]",
        APPLY,
        "needs_confirm",
    ),
    Mutation(
        "fixed terms may differ",
        "app/provisioning/planner.py",
        "        yield from _compare_terms(desired, present)",
        "        yield from ()",
        PLANNER,
        "fixed",
    ),
    Mutation(
        "a key may get a wider scope",
        "app/provisioning/key_planner.py",
        "if old.scope is not None and (scope is None or not is_under(scope, old.scope)):",
        "if False:",
        PLANNER,
        "other_terms",
    ),
    Mutation(
        "a key revokes itself",
        "app/provisioning/key_planner.py",
        "if any(key.id == state.caller for key in others):",
        "if False:",
        PLANNER,
        "revokes_itself",
    ),
    Mutation(
        "protection is lowered without confirmation",
        "app/provisioning/session.py",
        "if self.plan.loosening and not confirm:",
        "if False:",
        APPLY,
        "needs_confirm",
    ),
    Mutation(
        "alert settings overwrite those of somebody else",
        "app/provisioning/executor.py",
        "if change.operation is Operation.UPDATE and self._api.get(path)[0] != change.before:",
        "if False:",
        APPLY,
        "noticed",
    ),
    Mutation(
        "a budget is created although the policy for it was refused",
        "app/provisioning/executor.py",
        '                self._blocked[change.path] = f"{change.title} failed"',
        "                pass",
        APPLY,
        "refusal or roles",
    ),
    Mutation(
        "others may read the file of keys",
        "app/provisioning/keys_file.py",
        "found.st_mode & 0o077",
        "found.st_mode & 0o000",
        APPLY,
        "others_may_read",
    ),
    Mutation(
        "a secret is asked for twice",
        "app/provisioning/http_api.py",
        "json=body, repeatable=False",
        "json=body, repeatable=True",
        ("tests/provisioning/test_http_api.py",),
        "secret",
    ),
    Mutation(
        "each attempt has an idempotency key of its own",
        "app/provisioning/http_api.py",
        'reply = self._http.request(method, f"/v1/{path}", params=params, json=json, headers=headers)',
        'reply = self._http.request(method, f"/v1/{path}", params=params, json=json, '
        "headers={**(headers or {}), 'Idempotency-Key': str(uuid.uuid4())})",
        ("tests/provisioning/test_http_api.py",),
        "lost_answer",
    ),
    Mutation(
        "of two equal keys of a file the last one counts",
        "app/provisioning/yaml_text.py",
        "            if key in found:",
        "            if False:",
        YAML,
    ),
    Mutation(
        "aliases expand without end",
        "app/provisioning/yaml_text.py",
        "        if self._values > MAX_VALUES:",
        "        if self._values > 20 * MAX_VALUES:",
        YAML,
        "refused",
    ),
)
