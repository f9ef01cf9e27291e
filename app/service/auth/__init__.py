"""Who asks: keys and people, what they may do, how often."""
