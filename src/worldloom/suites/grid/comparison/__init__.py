"""Execution modes of the grid suite on equal work, timed side by side."""
