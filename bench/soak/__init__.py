"""A long run of the gateway under mixed load, to detect leaks."""
