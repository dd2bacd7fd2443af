"""The comparison lab: real traffic through every engine's cache policy, and the gap to the best possible."""
