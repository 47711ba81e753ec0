"""Keeping what a run produced: metrics, tables, checkpoints."""

from worldloom.track.async_logger import MinimalAsyncLogger

__all__ = ["MinimalAsyncLogger"]
