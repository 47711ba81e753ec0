"""The outside world's interfaces as thin shells over the pure functions."""
