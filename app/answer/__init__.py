"""Answers one question: the loop asks the core for the next step and executes it through the ports.

`learning` and the layers above it may import it. It imports the ports and the core, and no upstream.
"""
