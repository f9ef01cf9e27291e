"""Rules of allocations, of what they withhold, and of the order of plans that wait."""

from tests.mutation_cases.case import Mutation

AGING = ("tests/ledger/test_scheduling_aging.py",)
FAIRNESS = ("tests/ledger/test_scheduling_fairness.py",)
PASSES = ("tests/ledger/test_scheduling.py",)
RULES = ("tests/ledger/test_scheduling_rules.py",)
WITHHOLDING = ("tests/ledger/test_withholding.py",)

CASES = (
    Mutation(
        "the locked part of a limit is not withheld",
        "app/ledger/withholding.py",
        "withheld = self._locked(account, bounds) + self._promised(",
        "withheld = self._promised(",
        WITHHOLDING,
    ),
    Mutation(
        "a limit is unlocked rounded up",
        "app/ledger/withholding.py",
        "    rest = below - 1 if up else 0 ",
        "    rest = 0 if up else below - 1 ",
        WITHHOLDING,
    ),
    Mutation(
        "less than a fair share is unlocked",
        "app/ledger/withholding.py",
        "return _part(account, bounds, 1 - self.unlocked)",
        "return _part(account, bounds, 1 - self.unlocked * Fraction(99, 100))",
        FAIRNESS,
        "fair_plan",
    ),
    Mutation(
        "a part of a limit becomes usable a microsecond too early",
        "app/ledger/allocation.py",
        "return self.since - (-(self.over * window) // timedelta",
        "return self.since + ((self.over * window) // timedelta",
        ("tests/ledger/test_allocation.py",),
    ),
    Mutation(
        "what is promised to other budgets is not kept",
        "app/ledger/withholding.py",
        "if share.minimum and account_id not in own:",
        "if share.minimum and account_id in own:",
        WITHHOLDING,
    ),
    Mutation(
        "a promise is kept after it was taken",
        "app/ledger/withholding.py",
        "(promised if taken is None else _excess(promised, taken))",
        "promised",
        WITHHOLDING,
    ),
    Mutation(
        "what a budget has does not count to its maximum",
        "app/ledger/withholding.py",
        "for slope, base in lines_of(under).items() if slope]",
        "for slope, base in {1: under.spent}.items() if slope]",
        WITHHOLDING,
    ),
    Mutation(
        "more own delta is withheld than is left",
        "app/ledger/withholding.py",
        "min(withheld.delta, max(0, bounds.room - taken.delta))",
        "withheld.delta",
        WITHHOLDING,
    ),
    Mutation(
        "a plan is granted that one of its accounts refuses",
        "app/ledger/admission.py",
        "if not all(account.fits(cost) for account in views(accounts)):",
        "if not any(account.fits(cost) for account in views(accounts)):",
        PASSES,
    ),
    Mutation(
        "a tie of dominant shares goes to the first to arrive",
        "app/ledger/scheduling_rules.py",
        "tuple(sorted((each / plan.weight for each in shares[plan.id]), reverse=True))",
        "tuple(sorted((each / plan.weight for each in shares[plan.id]), reverse=True)[:1])",
        RULES,
    ),
    Mutation(
        "own deltas do not count in a dominant share",
        "app/ledger/scheduling_rules.py",
        "np.maximum(of_orders, of_deltas)",
        "of_orders",
        RULES,
    ),
    Mutation(
        "aged plans are tried in the order of the rule",
        "app/ledger/scheduling_rules.py",
        "standings.append(Standing(plan, aged, () if aged else scores[plan.id]))",
        "standings.append(Standing(plan, aged, scores[plan.id]))",
        RULES,
    ),
    Mutation(
        "aged plans are tried last",
        "app/ledger/scheduling.py",
        "return (-self.plan.priority, not self.aged, self.score,",
        "return (-self.plan.priority, self.aged, self.score,",
        (*RULES, *AGING),
    ),
    Mutation(
        "a younger plan takes what an aged one lacks",
        "app/ledger/scheduling.py",
        "if held is None or _delays(standing, waiting, books, held):",
        "if held is None:",
        (*AGING, *PASSES),
    ),
    Mutation(
        "a younger plan takes what an aged one would lack then",
        "app/ledger/scheduling.py",
        "    now, cost = after.seen_by(plan)\n",
        "    now, cost = before.seen_by(plan)\n",
        AGING,
    ),
    Mutation(
        "an aged plan that never fits holds others up",
        "app/ledger/scheduling.py",
        "shared, books, after) and not books.is_hopeless(other.plan):",
        "shared, books, after):",
        AGING,
    ),
    Mutation(
        "a plan in a partition without loss is not tried",
        "app/ledger/scheduling_rules.py",
        "if plan.id not in excluded or books.is_composed(plan)]",
        "if plan.id not in excluded]",
        PASSES,
    ),
)
