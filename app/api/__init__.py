"""The HTTP edge: routes, schemas, and the one table from exceptions to statuses."""
