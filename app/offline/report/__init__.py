"""Writes the refit report and the evaluation report as HTML, with plots. Only `cli` imports it."""
