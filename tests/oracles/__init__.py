"""Slow and obvious implementations: the oracles of the tests and the baseline of the benchmarks.

Each module states one thing as plainly as the language allows (a world of objects, a ring of rows,
a PyTorch learner and the loop around them), so that a compiled implementation can be compared
with it cell by cell and timed against it. Nothing here is meant to be fast, but nothing is made
slow on purpose either; where the original that these modules follow wastes work, `tuned=True`
drops the waste and keeps the results. PyTorch is imported by the `torch_*` modules only.
"""
