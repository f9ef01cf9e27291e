"""Epsilon Ledger: a REST service that accounts for differential-privacy budgets."""
