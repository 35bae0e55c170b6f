"""Compares aioresolve with other clients: time, CPU and memory, as ratios within one run."""
