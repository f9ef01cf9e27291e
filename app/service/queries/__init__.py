"""What people look at: many accounts at once, and how urgent each of them is."""
