"""The address of the API server and the credentials for it: `find_connection` returns both."""

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
