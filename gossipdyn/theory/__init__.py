"""What follows from the equations: fixed points, plateaus, floors, fluctuations."""
