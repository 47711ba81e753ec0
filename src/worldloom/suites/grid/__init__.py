"""Multi-agent gridworlds in which every agent has a network of its own."""
