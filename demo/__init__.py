"""The demo world: a small encyclopedia and its questions, written from open fact tables."""
