"""What every route shares: errors, keys, permits, middleware, event streams."""
