"""What `detect` examines, for the tests of the library and of the command line."""

SOURCES = [
    "TF_CONFIG",
    "Slurm",
    "SageMaker",
    "TPU variables",
    "TPU VM",
    "Kubernetes",
    "Compute Engine",
    "Launcher",
]
"""The names of the sources, in the order of precedence."""
