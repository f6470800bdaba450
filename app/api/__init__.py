"""The HTTP API: routes, receipts and pages.

The only package with FastAPI beside `cli`. `wiring` and `cli` import it; it never imports `offline`.
"""
