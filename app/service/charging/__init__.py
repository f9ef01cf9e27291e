"""The hot path: may this run take these steps? Commands are decided and written in groups, one transaction a group."""
