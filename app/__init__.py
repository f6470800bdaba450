"""Fetchwise: an online RAG gateway that knows before it fetches."""
