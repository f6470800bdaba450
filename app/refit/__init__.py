"""The offline job, one file a step."""
