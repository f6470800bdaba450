"""What survives a restart: the tables of the decision log on SQLite or PostgreSQL.

The only package that imports SQLAlchemy. `calibrators` and the layers above it may import it.
"""
