"""Learns from live traffic: the decision log, exploration, shadow runs.

`telemetry` and the layers above it may import it.
"""
