"""Networks as flax.linen modules behind init and apply: parameters are plain dicts."""
