"""Where the ledger is kept: engines, tables, and rows to domain types and back."""
