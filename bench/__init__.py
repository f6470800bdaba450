"""Benchmarks: performance claims are ratios measured side by side."""
