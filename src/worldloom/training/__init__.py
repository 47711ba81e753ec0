"""Training: one run, one driver, and the loops that it drives; knows no suite."""
