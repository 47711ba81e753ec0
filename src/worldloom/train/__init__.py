"""Training: three loops over one chunk driver, and what surrounds them on the host."""
