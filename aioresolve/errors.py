"""Every error that aioresolve raises, derived from one root.

```
ResolveError                                 the root: `except ResolveError` catches everything below
├── ConfigurationError     (ValueError)      an argument, file or variable is invalid
│   └── EnvironmentVariableError             a variable about the cluster is missing or invalid;
│                          (RuntimeError)    a ValueError too
├── InvalidClusterError    (TypeError,       the value does not describe a cluster
│                           ValueError)
├── UnknownTaskError       (ValueError)      the cluster has no such job or task
├── TaskConflictError      (KeyError)        two resolvers of a union return the same task
├── TaskIdentityError      (RuntimeError)    it cannot be determined which task this process is
├── PartialClusterError    (RuntimeError)    only a part of the cluster is known, such as one slice
├── LaunchError            (ValueError)      the cluster cannot be expressed for that kind of program
├── MissingDependencyError (ImportError)     an optional package is not installed
├── CredentialsError       (RuntimeError)    no source of credentials worked
├── DeadlineExceededError  (TimeoutError)    the total deadline of the call passed
│   ├── IncompleteClusterError               the cluster was not complete when `wait` ended
│   └── ProbeDeadlineError (RuntimeError)    workers did not report their devices; also a ProbeError
├── FailedClusterError     (RuntimeError)    the cluster being waited for cannot become complete
├── ConnectionFailedError  (ConnectionError) the server could not be reached, or the connection broke
│   └── TLSError                             the server was reached, but the TLS handshake failed
├── APIError               (RuntimeError)    the server returned a failure status
│   ├── UnauthorizedError                    401: the credentials were rejected
│   ├── ForbiddenError                       403; has the smallest RBAC manifest that would allow it
│   └── TPULookupError     (ValueError)      `service=` could not look up a TPU
├── ProtocolError          (RuntimeError)    the response is malformed, too large, or a redirect
├── ProbeError             (RuntimeError)    a worker did not report its devices, or workers differ
├── PodNotRunningError     (RuntimeError)    pods match the selector but are not running
├── InstanceNotRunningError (RuntimeError)   instances of a group are not running
├── TPUNotReadyError       (RuntimeError)    TPUs exist but are not ready, or not healthy
├── TPUNotFoundError       (ValueError,      no TPU was named, or the named TPU does not exist
│                           RuntimeError)
└── PodIndexError          (RuntimeError)    a task index is missing or taken twice
```

The second base classes are those that `tf.distribute.cluster_resolver` and the standard library promise: an
`except RuntimeError` written for TensorFlow's resolvers still works.

A message has two parts: the summary (what failed, where and why) and a `Hint` (what to change). No message
ever contains a token, key or password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ARGUMENT = re.compile(r"\{(?P<name>[a-z_]+)(?:=(?P<value>[^{}]*))?\}")


def _python_spelling(name: str, value: str | None) -> str:
    return f"`{name}=`" if value is None else f"`{name}={value!r}`"


@dataclass(frozen=True, slots=True)
class Hint:
    """What to change so that the call succeeds, in a form that each interface can spell in its own way.

    >>> Hint("Pass {not_running=skip} to leave them out, or raise {timeout}.").render()
    "Pass `not_running='skip'` to leave them out, or raise `timeout=`."

    Attributes:
        text: one or more sentences. `{name}` stands for an argument of the Python API, and `{name=value}` for
            that argument with a value.
        values: text to insert for other `{name}` placeholders, such as a file name from the user.
    """

    text: str
    values: Mapping[str, str] = field(default_factory=dict)

    def render(self, spell: Callable[[str, str | None], str] = _python_spelling) -> str:
        """Return the hint as text.

        Args:
            spell: called with the name of an argument and its value, if any; returns how the reader would
                write it. The default writes Python.
        """

        def replacement(match: re.Match[str]) -> str:
            name, value = match["name"], match["value"]
            if value is None and name in self.values:
                return self.values[name]
            return spell(name, value)

        return _ARGUMENT.sub(replacement, self.text)


class _HintAttribute:
    """The attribute `hint`, which may be set to a text."""

    def __get__(self, error: ResolveError | None, owner: type | None = None) -> Hint | None:
        return None if error is None else vars(error).get("_hint")

    def __set__(self, error: ResolveError, hint: Hint | str | None) -> None:
        vars(error)["_hint"] = Hint(hint) if isinstance(hint, str) else hint


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class _Attributes:
    """The annotated names of a subclass are keyword arguments of its constructor, and attributes."""

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True, eq=False, repr=False)(cls)


class ResolveError(_Attributes, Exception):
    """The root of every error that aioresolve raises.

    The attributes of an error are the arguments of its constructor, all by keyword but the summary.

    Attributes:
        summary: what failed, where and why, without the hint.
        hint: what to change, if anything can be recommended.
        retryable: whether the same call may succeed when it is made again unchanged.
    """

    summary: str = field(default="", kw_only=False)
    hint: _HintAttribute = _HintAttribute()
    retryable: bool = False

    def __post_init__(self) -> None:
        Exception.__init__(self, self.summary)
        for name, value in vars(self).items():
            if isinstance(value, Mapping):
                setattr(self, name, dict(value))
            elif isinstance(value, list):
                setattr(self, name, tuple(value))

    def __str__(self) -> str:
        return self.render()

    def render(self, spell: Callable[[str, str | None], str] = _python_spelling) -> str:
        """Return the summary and the hint as text, with arguments written by `spell` (see `Hint.render`)."""
        if self.hint is None:
            return self.summary
        return f"{self.summary}. {self.hint.render(spell)}"


class ConfigurationError(ResolveError, ValueError):
    """An argument, a file or an environment variable is invalid.

    Attributes:
        argument: the name of the invalid argument of the Python API; None if something else is invalid. The
            summary then describes the value only, and `render` puts the argument before it.
    """

    argument: str | None = None

    def render(self, spell: Callable[[str, str | None], str] = _python_spelling) -> str:
        """Return the argument, the summary and the hint as text (see `ResolveError.render`)."""
        text = super().render(spell)
        return text if self.argument is None else f"{spell(self.argument, None)}: {text}"


class EnvironmentVariableError(ConfigurationError, RuntimeError):
    """An environment variable that describes the cluster is missing or malformed, or contradicts another one.

    It is a RuntimeError too, which TensorFlow's `SlurmClusterResolver` raises.

    Attributes:
        variable: the name of the variable.
    """

    variable: str | None = None


class InvalidClusterError(ResolveError, TypeError, ValueError):
    """The value does not describe a cluster (see `ClusterSpec`).

    `tf.train.ClusterSpec` documents a TypeError, and raises a ValueError if a conversion inside it fails.
    """


class UnknownTaskError(ResolveError, ValueError):
    """The cluster has no job of that name, or the job has no task with that index."""


class TaskConflictError(ResolveError, KeyError):
    """Two resolvers of a union return the same task of a job whose tasks keep their indices."""


class TaskIdentityError(ResolveError, RuntimeError):
    """It cannot be determined which task of the cluster this process is, or the evidence is contradictory.

    Attributes:
        tried: one line for each kind of evidence, in the order tried: what it is, and what it matched.
        candidates: the tasks that this process may be, such as `/job:worker/task:2`; empty if none matched.
    """

    tried: Sequence[str] = ()
    candidates: Sequence[str] = ()


class PartialClusterError(ResolveError, RuntimeError):
    """The members of only a part of the cluster are known, such as those of one TPU slice of several.

    JAX needs no other members, and `aioresolve.launch.jax_processes` gives it these attributes.

    Attributes:
        coordinator: the host of the process with id 0; None if it is unknown.
        num_processes: the number of processes of the whole cluster; None if it is unknown.
        process_id: the id of this process among them, from 0; None if it is unknown.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


class LaunchError(ResolveError, ValueError):
    """The cluster cannot be expressed for that kind of program, such as two jobs for JAX."""


class MissingDependencyError(ResolveError, ImportError):
    """An optional package is not installed; the hint contains the `pip install` command."""


class CredentialsError(ResolveError, RuntimeError):
    """No source of credentials worked.

    Attributes:
        tried: one line for each source, in the order tried: what it is and why it failed.
    """

    tried: Sequence[str] = ()


class DeadlineExceededError(ResolveError, TimeoutError):
    """The total deadline of the call passed.

    Attributes:
        timeout: the deadline, in seconds from the start of the call.
        reached: the requests that had completed: scope to a short description of the response.
        missing: the requests that had not: scope to what was being waited for, with the last error.
    """

    retryable: bool = True
    timeout: float | None = None
    reached: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


class IncompleteClusterError(DeadlineExceededError):
    """The deadline of `wait` passed before the cluster was complete.

    Attributes:
        found: job name to the number of its usable tasks, those that are done included.
        wanted: job name to the number of tasks that was requested, or that the source expects; `""` for the
            total of all jobs.
        missing: `namespace/name` of each missing pod, or the name of the TPU, to the reason; or a selector
            that matches nothing, to what exists in its place.
        sources: job name to what states the number that the source expects, such as
            `spec.replicas of StatefulSet ml/trainer`; empty if a number was requested.
    """

    found: Mapping[str, int] = field(default_factory=dict)
    wanted: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


class FailedClusterError(ResolveError, RuntimeError):
    """The cluster being waited for cannot become complete. Attributes: see `IncompleteClusterError`."""

    found: Mapping[str, int] = field(default_factory=dict)
    wanted: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


class _RequestError(ResolveError):
    host: str | None = None
    scope: str | None = None


class ConnectionFailedError(_RequestError, ConnectionError):
    """The server could not be reached, or the connection broke before the response was complete.

    Attributes:
        host: the server, `scheme://host:port`.
        scope: what was requested, as text.
    """

    retryable: bool = True


class TLSError(ConnectionFailedError):
    """The server was reached, but one side rejected the certificate of the other, or it does not use TLS."""

    retryable: bool = False


class APIError(_RequestError, RuntimeError):
    """The server returned a failure status. For `host` and `scope` see `ConnectionFailedError`.

    Attributes:
        status: the HTTP status code.
        reason: the machine-readable reason in the response (`Expired`, `TooManyRequests`, ...), if any.
        retry_after: the seconds that the server asked to wait before the next attempt, if it did.
    """

    status: int | None = None
    reason: str | None = None
    retry_after: float | None = None


class UnauthorizedError(APIError):
    """401: the server rejected the credentials; those that can be renewed were renewed once before."""


class ForbiddenError(APIError):
    """403: the server authenticated the client but denied the request.

    Attributes:
        manifest: the smallest Role (or ClusterRole) and binding that would permit the request, as YAML for
            `kubectl apply -f -`; empty if the server did not name the denied user.
        user: the denied user, as the server names it; empty if it did not.
    """

    manifest: str = ""
    user: str = ""


class TPULookupError(APIError, ValueError):
    """The `service=` of a `TPUClusterResolver` could not look up a TPU; `status` is None without a response.

    Its `__cause__` is the error of the service, for which TensorFlow documents a ValueError.
    """


class ProtocolError(_RequestError, RuntimeError):
    """The response is malformed, of an unexpected type, too large, or a redirect.

    For `host` and `scope` see `ConnectionFailedError`.
    """


class ProbeError(ResolveError, RuntimeError):
    """A worker did not report its devices, or workers that should be alike have different devices.

    Attributes:
        address: the worker, `host:port`; None if the error concerns several workers.
        code: what happened.

            - `"refused"`: nothing listens on that port. The worker may still be running, but cannot be
              probed this way.
            - `"unimplemented"`: a different gRPC service listens on that port.
            - `"unreachable"`: the connection failed or broke.
            - `"deadline"`: the worker did not respond in time.
            - `"tls"`: the TLS handshake failed: the worker does not use TLS, or a certificate was
              rejected.
            - `"denied"`: the worker rejected the credentials or metadata.
            - `"malformed"`: the response is invalid or implausible.
            - `"too_large"`: the response exceeds the size limit.
            - `"failed"`: the worker returned any other gRPC status.
            - `"uneven"`: workers that should be alike have different devices.
        status: the name of the gRPC status of the call, such as `UNAVAILABLE`; None if it did not fail.
        failures: if the error concerns several workers, the address of each to the reason.
    """

    address: str | None = None
    code: str | None = None
    status: str | None = None
    failures: Mapping[str, str] = field(default_factory=dict)


class ProbeDeadlineError(DeadlineExceededError, ProbeError):
    """Workers did not report their devices before the deadline, and none failed for another reason.

    It is a RuntimeError too, which TensorFlow's `num_accelerators` promises if a worker cannot be reached.

    Attributes:
        failures: each worker that did not respond to the reason; `missing` is the same.
    """

    code: str | None = "deadline"


class PodNotRunningError(ResolveError, RuntimeError):
    """Pods match a selector but are not running, or endpoints of a Service are not ready.

    Attributes:
        pods: `namespace/name` of every such pod to its phase and reason, in the order of the selectors.
    """

    retryable: bool = True
    pods: Mapping[str, str] = field(default_factory=dict)


class InstanceNotRunningError(ResolveError, RuntimeError):
    """Instances of a group of Compute Engine are not running, or have no address.

    The error is `retryable` if each of them may run without user action, such as one that is being created.

    Attributes:
        instances: the name of every such instance to the reason, in the order of the names.
    """

    instances: Mapping[str, str] = field(default_factory=dict)


class TPUNotReadyError(ResolveError, RuntimeError):
    """TPUs or queued resources exist but are not ready, or not healthy.

    The error is `retryable` if each of them may become ready without user action, such as a TPU that is being
    created or repaired. A preempted or terminated TPU does not.

    Attributes:
        tpus: the name of each TPU that is not ready to the reason.
        state: the state of the first of them, as the API reports it: `CREATING`, `PREEMPTED`, ...
        health: its health: `UNHEALTHY_MAINTENANCE`, ...; empty if the API does not report it.
        symptoms: its symptoms, one line each.
    """

    tpus: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    health: str = ""
    symptoms: Sequence[str] = ()


class TPUNotFoundError(ResolveError, ValueError, RuntimeError):
    """No TPU was named and none was found, or the named TPU does not exist.

    Attributes:
        tried: one line for each place that was searched, in order: what it is and what was found.
        names: the named TPUs that do not exist.
    """

    tried: Sequence[str] = ()
    names: Sequence[str] = ()


class PodIndexError(ResolveError, RuntimeError):
    """With `order_by="index"`: a pod has no index, an index is missing, or two pods claim the same one.

    With an order by labels: a pod or its node lacks the label.
    """

    retryable: bool = True
