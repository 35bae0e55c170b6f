"""SlurmClusterResolver: the tasks of a Slurm job or step as a cluster."""

from .resolver import SlurmClusterResolver

__all__ = ["SlurmClusterResolver"]
