"""Learning algorithms, one file each: config, init, act, loss, update."""
