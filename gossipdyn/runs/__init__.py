"""The clock, the loop and the record that all engines share, and their files."""
