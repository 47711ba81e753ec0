"""A biped that learns to stand and to walk, on three engines that agree."""
