"""Who we are and where the API server is: `find_connection` and what it finds."""

from .connection import Connection, CredentialCache, checked_location, find_connection, kubeconfig_paths
from .discovery import ExecutableLocation

__all__ = [
    "Connection",
    "CredentialCache",
    "ExecutableLocation",
    "checked_location",
    "find_connection",
    "kubeconfig_paths",
]
