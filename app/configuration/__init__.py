"""What the environment and its files say: settings of the service, and the issuers of workload identities."""
