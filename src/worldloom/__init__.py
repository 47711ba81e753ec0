"""Whole reinforcement-learning experiments compiled into one XLA program.

Everything is imported when first used: `import worldloom` itself imports no jax.
"""

__version__ = "0.1.0"
