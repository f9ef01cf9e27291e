"""Worker processes for expensive calculations, shared fairly."""
