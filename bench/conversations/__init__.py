"""Conversations: does the last message stand alone, and what is found for it."""
