"""The version of aioresolve, read by the build."""

__version__ = "0.1.0"
