"""`epsilon-ledger serve --sample`: a sample organisation in a throw-away ledger, on which a trainer takes steps."""
