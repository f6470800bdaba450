"""One file a vendor: each speaks a vendor's language outside and a port's inside."""
