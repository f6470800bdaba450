"""Fits a calibrator, chooses thresholds on held-out data and certifies them.

`offline.evaluate`, `offline.report`, `offline.from_log` and `cli` import it.
"""
