"""Reserve plans for runs, and close the reservations."""
