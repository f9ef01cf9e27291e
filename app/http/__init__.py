"""HTTP server: its process, its connections, and the fast path of a step."""
