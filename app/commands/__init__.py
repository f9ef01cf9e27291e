"""What each command does; `app.cli` puts them together."""
