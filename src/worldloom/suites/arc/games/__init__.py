"""Turn-based grid games in the format of ARC-AGI-3: pure functions, played by the thousand.

`engine` says what a game is; each game is a module of its own; `world` makes an environment of it.
"""
