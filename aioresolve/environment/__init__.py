"""Clusters that the platform describes to a process: variables, Slurm, SageMaker, Compute Engine."""
