"""Rules of accounts' plans."""

from tests.mutation_cases.case import Mutation

ACCOUNTS = ("tests/ledger/test_plan_accounts.py",)
PLAN_FILTER = "tests/ledger/test_plan_filter.py"
UNITS = "tests/ledger/test_plan_gaussian_units.py"

CASES = (
    Mutation(
        "a plan's delta is found for the noise before it was rounded",
        "app/ledger/plan_filter.py",
        "        each = _in_whole_units(mechanism)\n",
        "        each = mechanism\n",
        (UNITS,),
    ),
    Mutation(
        "noise on all data is used up rounded down",
        "app/ledger/plan_filter.py",
        "return ceil(UNITS / Fraction(noise) ** 2)",
        "return round(UNITS // 2**60 / Fraction(noise) ** 2)",
        (PLAN_FILTER, UNITS),
    ),
    Mutation(
        "charges that a plan did not cover are forgotten",
        "app/ledger/accounts.py",
        "fitting = plan.repetitions(used, cost if",
        "fitting = plan.repetitions((0, *used[1:]), cost if",
        ACCOUNTS,
        "accounts_admit and 1-1",
    ),
    Mutation(
        "what is held of a plan does not count",
        "app/ledger/accounts.py",
        "[plan.used_by(self.spent, owner), plan.used_by(self.held, owner)]",
        "[plan.used_by(self.spent, owner)]",
        ACCOUNTS,
        "accounts_admit and 1-1",
    ),
    Mutation(
        "what is held of a plan ends when its reservation does not",
        "app/ledger/accounts.py",
        "spent=self.spent + self.counting(cost), held=self.counting(held), version",
        "spent=self.spent + self.counting(cost), held=self.counting(held.using(self.held.used)), version",
        ACCOUNTS,
        "accounts_admit and 1-1",
    ),
    Mutation(
        "of a plan's uses in parts the largest counts alone",
        "app/ledger/parallel_exposure.py",
        "zip(*(sorted(column, reverse=True)[:many] for column in columns), strict=True)",
        "zip(*([max(column), *[0] * (many - 1)] for column in columns), strict=True)",
        ACCOUNTS,
        "accounts_admit and 3-2",
    ),
    Mutation(
        "a plan above the run's account does not count its charges",
        "app/ledger/accounts.py",
        "for account in path if account.plan is not None]",
        "for account in path[-1:] if account.plan is not None]",
        ACCOUNTS,
        "accounts_admit and 1-1",
    ),
    Mutation(
        "the orders keep the plan's share of delta",
        "app/ledger/filters.py",
        "for_orders = 1.0 if plan is None else 1.0 - plan.delta / ((1.0 - SET_ASIDE) * spread)",
        "for_orders = 1.0",
        ACCOUNTS,
        "chosen_weights and 1-1",
    ),
    Mutation(
        "a filter is chosen anew after a release that its plan covers",
        "app/ledger/accounts.py",
        "if plan is None or not self.is_untouched:",
        "if plan is None:",
        ACCOUNTS,
        "accounts_admit and 1-1",
    ),
    Mutation(
        "a reservation ends a plan of which nothing was released",
        "app/ledger/accounts.py",
        "(held or not self._leaves_plan(steps))",
        "not self._leaves_plan(steps)",
        ACCOUNTS,
        "accounts_admit and 1-1",
    ),
    Mutation(
        "a lowered limit allows as many steps of a plan as before",
        "app/ledger/tuning.py",
        "known = 0 if is_lowered(before.limit, limit) else scaled.plan.steps",
        "known = scaled.plan.steps",
        ACCOUNTS,
        "limit_changes and 1-1",
    ),
    Mutation(
        "what rounding takes from the parts of delta goes into the reserve",
        "app/ledger/tuning.py",
        "changed = FilterWeights(weights.indices, parts[:orders], parts[orders], plan)",
        "changed = FilterWeights.of(after.delta, weights.indices, parts[:orders], plan)",
        ("tests/ledger/test_limits.py",),
    ),
    Mutation(
        "one step too many is admitted",
        "app/ledger/admission.py",
        "overdrawn, ended = remaining < 0,",
        "overdrawn, ended = remaining < -1,",
        ("tests/ledger/test_admission.py",),
    ),
    Mutation(
        "a plan is pickled with what other threads add to it",
        "app/ledger/plan_filter.py",
        '        return fixed | {"_costs": {}}\n',
        '        return fixed | {"_costs": self._costs}\n',
        (PLAN_FILTER,),
    ),
    Mutation(
        "searches for refused requests keep others from what they need",
        "app/service/costing.py",
        "{'prices' if self._needed else 'alternatives'}",
        "prices",
        ("tests/service/test_worker_pool.py",),
    ),
)
