"""HTTP API: schemas, routers and problems, without rules of the ledger."""
