"""Configuration as code: a file of an organisation, compared with a server and applied over HTTP."""
