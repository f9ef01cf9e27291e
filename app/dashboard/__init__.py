"""Pages for people: what the API tells, drawn and explained, in a browser."""
