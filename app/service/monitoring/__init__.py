"""What operators watch: counted where it happens, sampled in each process, read from the ledger when they ask."""
