"""FLARE against full answers that are written in one go, on the embedded reader."""
