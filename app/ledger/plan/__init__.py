"""Plans of accounts: declared events, and how much of them is used."""
