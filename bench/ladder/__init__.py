"""The ladder beside fixed numbers of passages and the gate by log-probabilities."""
