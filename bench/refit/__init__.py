"""The refit job on synthetic tables of up to 100,000 rows."""
