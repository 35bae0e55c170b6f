"""Side by side with the peers: how long, how much CPU, how much memory, as ratios within one run."""
