"""The pages of benchmark results."""
