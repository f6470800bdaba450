"""The gateway beside pass-throughs that make the same calls, and beside another proxy, on parts that answer at once."""
