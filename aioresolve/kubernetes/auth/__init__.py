"""The API server to connect to, and the credentials for it."""

from .connection import NAMESPACE, Connection, CredentialCache
from .discovery import (
    ConnectionOverrides,
    ExecutableLocation,
    find_connection,
    kubeconfig_paths,
    validate_location,
    validate_overrides,
)

__all__ = [
    "NAMESPACE",
    "Connection",
    "ConnectionOverrides",
    "CredentialCache",
    "ExecutableLocation",
    "find_connection",
    "kubeconfig_paths",
    "validate_location",
    "validate_overrides",
]
