"""The alternatives to a refusal: which noise, limit or number of steps would fit."""
