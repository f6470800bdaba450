"""Fetchwise: a gateway that decides for each question how many passages to read."""
