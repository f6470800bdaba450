"""The CPU time of one decision, without any upstream."""
