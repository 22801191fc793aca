"""Who averages with whom, and what the average does to a state."""
