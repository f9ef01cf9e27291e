"""HTTP: schemas, routers, problems. No rule of the ledger lives here."""
