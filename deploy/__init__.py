"""Putting the service into operation; here: the bill of materials, and the audit of what is locked."""
