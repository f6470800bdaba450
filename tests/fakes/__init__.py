"""Working implementations of the ports, for tests."""
