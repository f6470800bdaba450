"""How many modules and calls a question, a refit, an ingest and the dashboard pass."""
