"""Three kinds of storage behind ports: small documents with revisions, the rows of the decision log, and rates of keys.

Documents are files or rows of a database, the log is on SQLite or PostgreSQL, rates are in shared memory. Only this
package imports SQLAlchemy. `calibrators` and the layers above it may import it.
"""
