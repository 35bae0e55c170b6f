"""The API server to connect to, and the credentials for it."""

from .connection import Connection, CredentialCache
from .discovery import ExecutableLocation, find_connection, kubeconfig_paths, validate_location

__all__ = [
    "Connection",
    "CredentialCache",
    "ExecutableLocation",
    "find_connection",
    "kubeconfig_paths",
    "validate_location",
]
