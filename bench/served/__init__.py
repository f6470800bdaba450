"""The shipped ladder on the embedded reader, measured through the gateway."""
