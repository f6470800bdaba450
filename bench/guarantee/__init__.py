"""How often certificates and revocations are wrong, in worlds whose truth is known."""
