"""What travels between a trainer and the ledger: values, events, problems, requests."""
