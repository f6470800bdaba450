"""The refit job on synthetic tables of up to a million rows."""
