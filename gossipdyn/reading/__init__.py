"""What a state or a run shows: diagnosis, setbacks, phases, intervals."""
