"""Query, sign and export the audit log and the decisions."""
