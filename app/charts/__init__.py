"""What is drawn: charts as plain data, for a browser, for a table beside them, and for pictures."""
