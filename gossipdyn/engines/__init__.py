"""Three ways to move a state forward in time, each an independent witness."""
