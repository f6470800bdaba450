"""Compares policies on an outcome table, with the paper's tables and baselines.

`offline.report` and `cli` import it.
"""
