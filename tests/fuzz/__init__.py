"""Random requests against a live service: valid, half valid and hostile ones, by every role of two organisations."""
