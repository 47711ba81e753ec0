"""Memories: an online ring of frames, and offline data sets."""
