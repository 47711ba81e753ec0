"""Keeping what a run produced: metrics, tables, checkpoints."""
