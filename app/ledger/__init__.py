"""Pure rules of the ledger: no SQL, no HTTP, no clock."""
