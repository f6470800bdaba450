"""Fits a calibrator, chooses thresholds on held-out data and certifies them."""
