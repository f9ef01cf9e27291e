"""HTTP transport: configuration, requests and retries."""
