"""The API server to connect to, and the credentials for it."""

from .connection import NAMESPACE, Connection, CredentialCache
from .discovery import ExecutableLocation, ServerSearch, find_connection, search_for

__all__ = [
    "NAMESPACE",
    "Connection",
    "CredentialCache",
    "ExecutableLocation",
    "ServerSearch",
    "find_connection",
    "search_for",
]
