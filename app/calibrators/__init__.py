"""Published calibrators: the folder, which one serves, whether it still holds.

`learning` and the layers above it may import it.
"""
