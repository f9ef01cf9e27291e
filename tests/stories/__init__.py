"""The stories of people who use the ledger, from an empty folder, in a shell and a browser."""
