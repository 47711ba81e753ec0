"""Measuring: execution modes on equal work, and suites against what users would run instead."""
