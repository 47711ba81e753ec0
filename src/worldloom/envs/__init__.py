"""Worlds: pure rules, no networks, no replay."""
