"""Batch jobs: collect outcomes, refit the calibrator, evaluate, report.

The only package with scikit-learn, SciPy and Matplotlib. Only `cli` imports it.
"""
