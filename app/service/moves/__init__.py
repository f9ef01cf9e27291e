"""The move of an organisation to another placement."""
