"""From files to a searchable collection: read documents, cut them into passages, embed and store what is new."""
