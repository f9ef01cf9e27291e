"""Epsilon Ledger: a REST service that keeps differential-privacy budgets the way a bank keeps accounts."""
