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
│   └── IncompleteClusterError                 a cluster that was waited for did not become complete
├── FailedClusterError     (RuntimeError)      a cluster that was waited for can become complete no more
├── ConnectionFailedError  (ConnectionError)   the server was not reached, or the connection broke
│   └── TLSError                               the server was reached, its TLS was not accepted
├── APIError               (RuntimeError)      the server answered with a failure status
│   ├── UnauthorizedError                      401, and once more after the credentials were renewed
│   └── ForbiddenError                         403; carries the smallest RBAC manifest that would do
├── ProtocolError          (RuntimeError)      the server answered what cannot be understood or trusted
├── ProbeError             (RuntimeError)      a worker did not tell its devices, or workers differ in them
├── PodNotRunningError     (RuntimeError)      pods match the selector and are not running
├── TPUNotReadyError       (RuntimeError)      TPUs exist and are not ready, or not healthy
├── TPUNotFoundError       (ValueError,        no TPU was named, or there is none of that name
│                           RuntimeError)
└── PodIndexError          (RuntimeError)      a task index is missing or taken twice
```

The second bases are what `tf.distribute.cluster_resolver` and the standard library promise, so an
`except RuntimeError` written for TensorFlow's resolvers still works. Every message names the input, the
place and the mend; none ever holds a token, a key or a certificate.
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
    "FailedClusterError",
    "ForbiddenError",
    "IncompleteClusterError",
    "InvalidClusterError",
    "MissingDependencyError",
    "PodIndexError",
    "PodNotRunningError",
    "ProbeError",
    "ProtocolError",
    "ResolveError",
    "TLSError",
    "TPUNotFoundError",
    "TPUNotReadyError",
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


class IncompleteClusterError(DeadlineExceededError):
    """The deadline of `wait` passed before the cluster was complete.

    Attributes:
        found: each job that was waited for to the number of its tasks that could be used.
        wanted: each job to the number that was wanted of it, where one was given; that of all under `""`.
        missing: `namespace/name` of each pod that is missing, or the TPU's name, to the reason why.
    """

    def __init__(
        self,
        message: str = "",
        *,
        timeout: float | None = None,
        found: Mapping[str, int] | None = None,
        wanted: Mapping[str, int] | None = None,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, timeout=timeout, missing=missing)
        self.found, self.wanted = dict(found or {}), dict(wanted or {})


class FailedClusterError(ResolveError, RuntimeError):
    """What was waited for can come no more. Its attributes are as of `IncompleteClusterError`."""

    def __init__(
        self,
        message: str = "",
        *,
        found: Mapping[str, int] | None = None,
        wanted: Mapping[str, int] | None = None,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.found, self.wanted, self.missing = dict(found or {}), dict(wanted or {}), dict(missing or {})


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


class ProbeError(ResolveError, RuntimeError):
    """A worker did not tell which devices it has, or workers that should be alike have different ones.

    Attributes:
        address: the worker, `host:port`; None where it is about several.
        code: what happened.

            - `"refused"`: nothing listens at that port. The worker cannot be probed this way, which is not to
              say that it is dead.
            - `"unimplemented"`: another gRPC service listens there.
            - `"unreachable"`: there was no connection, or it broke.
            - `"deadline"`: there was no answer in time.
            - `"tls"`: one side speaks TLS and the other does not, or a certificate was not accepted.
            - `"denied"`: the worker does not accept our credentials or metadata.
            - `"malformed"`: the answer cannot be understood or believed.
            - `"too_large"`: the answer is larger than it may be.
            - `"failed"`: the worker answered with any other gRPC status.
            - `"uneven"`: workers that should be alike have different devices.
        failures: where it is about several workers, each of those at fault to the reason.
    """

    def __init__(
        self,
        message: str = "",
        *,
        address: str | None = None,
        code: str | None = None,
        failures: Mapping[str, str] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.address = address
        self.code = code
        self.failures = dict(failures or {})


class PodNotRunningError(ResolveError, RuntimeError):
    """Pods match a selector and are not running.

    Attributes:
        pods: `namespace/name` of every such pod to its phase and reason, in selector order.
    """

    retryable = True

    def __init__(self, message: str = "", *, pods: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.pods = dict(pods or {})


class TPUNotReadyError(ResolveError, RuntimeError):
    """TPUs, or the queued resources that are to bring them, exist and are not ready, or not healthy.

    It is `retryable` where every one of them may become ready by itself, as one being created or repaired
    does; one that was preempted or terminated does not.

    Attributes:
        tpus: each TPU that is not ready, by name, to what is wrong with it.
        state: the state of the first of them, in the API's words: `CREATING`, `PREEMPTED`, ...
        health: its health: `UNHEALTHY_MAINTENANCE`, ...; empty where the API does not tell.
        symptoms: its symptoms, one line each.
    """

    def __init__(
        self,
        message: str = "",
        *,
        tpus: Mapping[str, str] | None = None,
        state: str = "",
        health: str = "",
        symptoms: Sequence[str] = (),
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.tpus = dict(tpus or {})
        self.state = state
        self.health = health
        self.symptoms = tuple(symptoms)


class TPUNotFoundError(ResolveError, ValueError, RuntimeError):
    """No TPU was named and none was found, or there is none of the name given.

    Attributes:
        tried: one line per place that was looked at, in order: what it is and what was found there.
        names: the TPUs that were named and do not exist.
    """

    def __init__(self, message: str = "", *, tried: Sequence[str] = (), names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tried = tuple(tried)
        self.names = tuple(names)


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
