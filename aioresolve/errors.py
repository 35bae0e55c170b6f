"""Every error aioresolve raises, under one root.

```
ResolveError                                   the root: `except ResolveError` catches everything below
├── ConfigurationError     (ValueError)        an argument, file or variable is wrong
├── InvalidClusterError    (TypeError,         this is no description of a cluster
│                           ValueError)
├── UnknownTaskError       (ValueError)        the cluster has no such job or task
├── TaskConflictError      (KeyError)          two resolvers of a union know the same task
├── MissingDependencyError (ImportError)       an optional package is not installed
├── CredentialsError       (RuntimeError)      no way to say who we are worked
├── DeadlineExceededError  (TimeoutError)      the call's total deadline passed
├── ConnectionFailedError  (ConnectionError)   the server was not reached, or the connection broke
│   └── TLSError                               the server was reached, its TLS was not accepted
├── APIError               (RuntimeError)      the server answered with a failure status
│   ├── UnauthorizedError                      401, and once more after the credentials were renewed
│   └── ForbiddenError                         403; carries the smallest RBAC manifest that would do
├── ProtocolError          (RuntimeError)      the server answered what cannot be understood or trusted
├── PodNotRunningError     (RuntimeError)      pods match the selector and are not running
└── PodIndexError          (RuntimeError)      a task index is missing or taken twice
```

The second bases are what `tf.distribute.cluster_resolver` and the standard library promise, so an
`except RuntimeError` written for TensorFlow's resolvers still works. Every message names the input,
the place and the mend; none ever holds a token, a key or a certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "APIError",
    "ConfigurationError",
    "ConnectionFailedError",
    "CredentialsError",
    "DeadlineExceededError",
    "ForbiddenError",
    "InvalidClusterError",
    "MissingDependencyError",
    "PodIndexError",
    "PodNotRunningError",
    "ProtocolError",
    "ResolveError",
    "TLSError",
    "TaskConflictError",
    "UnauthorizedError",
    "UnknownTaskError",
]


class ResolveError(Exception):
    """The root of every error aioresolve raises.

    Attributes:
        retryable: whether the same call may succeed when it is simply made again.
    """

    retryable: bool = False

    def __init__(self, message: str = "", *, retryable: bool | None = None) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable


class ConfigurationError(ResolveError, ValueError):
    """An argument, a file or an environment variable is wrong; the message says which and how to mend it."""


class InvalidClusterError(ResolveError, TypeError, ValueError):
    """The value given does not describe a cluster (see `ClusterSpec`).

    `tf.train.ClusterSpec` promises a TypeError, and raises a ValueError where a conversion inside it fails.
    """


class UnknownTaskError(ResolveError, ValueError):
    """The cluster has no job of that name, or the job has no task of that index."""


class TaskConflictError(ResolveError, KeyError):
    """Two resolvers of a union each know the same task of a job whose tasks keep their indices.

    Attributes:
        job: the job.
        indices: the task indices that are taken twice.
    """

    def __init__(self, message: str = "", *, job: str | None = None, indices: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.job = job
        self.indices = tuple(indices)

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would put the message in quotes


class MissingDependencyError(ResolveError, ImportError):
    """An optional package is needed and not installed; the message holds the `pip install` line."""


class CredentialsError(ResolveError, RuntimeError):
    """No source of credentials worked.

    Attributes:
        tried: one line per source, in the order tried: what it was and why it failed.
    """

    def __init__(
        self, message: str = "", *, tried: Sequence[str] = (), retryable: bool | None = None
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.tried = tuple(tried)


class DeadlineExceededError(ResolveError, TimeoutError):
    """The call's total deadline passed.

    Attributes:
        timeout: the deadline, in seconds from the start of the call.
        reached: what had been answered by then: scope to a few words on the answer.
        missing: what had not: scope to what was being waited for, and the last error seen there.
    """

    retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        timeout: float | None = None,
        reached: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.timeout = timeout
        self.reached = dict(reached or {})
        self.missing = dict(missing or {})


class ConnectionFailedError(ResolveError, ConnectionError):
    """The server was not reached, or the connection broke before the answer was whole.

    Attributes:
        host: the server asked, `scheme://host:port`.
        scope: what was asked of it.
    """

    retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        host: str | None = None,
        scope: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.host = host
        self.scope = scope


class TLSError(ConnectionFailedError):
    """The server was reached, but its certificate (or ours) was not accepted, or it does not speak TLS."""

    retryable = False


class APIError(ResolveError, RuntimeError):
    """The server answered with a failure status.

    Attributes:
        host: the server asked, `scheme://host:port`.
        scope: what was asked of it.
        status: the HTTP status code.
        reason: the server's own word for it (`Expired`, `TooManyRequests`, ...), if it gave one.
        retry_after: seconds the server asked to wait before the next try, if it did.
    """

    def __init__(
        self,
        message: str = "",
        *,
        host: str | None = None,
        scope: str | None = None,
        status: int | None = None,
        reason: str | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.host = host
        self.scope = scope
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class UnauthorizedError(APIError):
    """401: the server does not accept our credentials, nor did it after they were renewed once."""


class ForbiddenError(APIError):
    """403: the server knows us and says no.

    Attributes:
        manifest: the smallest Role (or ClusterRole) and binding that would allow it, as YAML for
            `kubectl apply -f -`; empty where the server did not say who we are.
    """

    def __init__(
        self,
        message: str = "",
        *,
        host: str | None = None,
        scope: str | None = None,
        status: int | None = None,
        reason: str | None = None,
        manifest: str = "",
    ) -> None:
        super().__init__(message, host=host, scope=scope, status=status, reason=reason)
        self.manifest = manifest


class ProtocolError(ResolveError, RuntimeError):
    """The server answered what cannot be understood or trusted: no JSON, another shape, a redirect.

    Attributes:
        host: the server asked, `scheme://host:port`.
        scope: what was asked of it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        host: str | None = None,
        scope: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.host = host
        self.scope = scope


class PodNotRunningError(ResolveError, RuntimeError):
    """Pods match a selector and are not running.

    Attributes:
        pods: `namespace/name` of every such pod to its phase and reason, in selector order.
    """

    retryable = True

    def __init__(self, message: str = "", *, pods: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.pods = dict(pods or {})


class PodIndexError(ResolveError, RuntimeError):
    """With `order_by="index"`: a pod has no index, an index is missing, or two pods claim the same one.

    Attributes:
        job: the job whose tasks were being put in order.
        missing: task indices that no pod has.
        duplicates: task index to the `namespace/name` of the pods that claim it.
        unindexed: `namespace/name` of the pods that carry no known index.
    """

    retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        job: str | None = None,
        missing: Sequence[int] = (),
        duplicates: Mapping[int, Sequence[str]] | None = None,
        unindexed: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.job = job
        self.missing = tuple(missing)
        self.duplicates = {index: tuple(names) for index, names in (duplicates or {}).items()}
        self.unindexed = tuple(unindexed)
