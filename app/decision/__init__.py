"""The pure core: signals to probability to action. No I/O, no clock, no randomness."""
