"""From an error to what a person at a terminal reads, and to the exit code. Pure."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING

from aioresolve.errors import (
    ConfigurationError,
    DeadlineExceededError,
    FailedClusterError,
    ForbiddenError,
    IncompleteClusterError,
    MissingDependencyError,
)

from .output.formats import one_line, span
from .output.wait_report import report

if TYPE_CHECKING:
    from aioresolve.errors import ResolveError

__all__ = [
    "AS_OPTIONS",
    "COULD_NOT_RESOLVE",
    "DEADLINE",
    "INTERRUPTED",
    "OUTPUT_CLOSED",
    "TERMINATED",
    "WRONG_USAGE",
    "as_options",
    "as_text",
    "as_traceback",
    "exit_code",
]

COULD_NOT_RESOLVE = 1
WRONG_USAGE = 2
DEADLINE = 3
INTERRUPTED = 130
"""128 + SIGINT, as a shell reports a process that Ctrl-C ended."""
OUTPUT_CLOSED = 141
"""128 + SIGPIPE, as a shell reports a process whose reader (`head`, say) has gone."""
TERMINATED = 143
"""128 + SIGTERM."""

AS_OPTIONS = {
    "not_running='skip'": "--not-running skip",
    "raise `timeout`": "raise --timeout",
    "pass `namespace=`": "pass -n NAMESPACE",
    "use another `address`": "use another --address",
    "use order_by='name'": "use --order-by name",
    "give context= one of": "give --context one of",
    "Give kubeconfig=,": "Give --kubeconfig,",
    "tpu= was not given": "no NAME was given",
    "Give tpu= a name or an address": "Give a NAME or an address",
    "correct tpu, project or zone": "correct NAME, --project or --zone",
    "ask with api_version='v2'": "ask with --api-version v2",
    "or `max_concurrency`": "or --max-concurrency",
    "give ProbeChannels(credentials=...)": "give --tls to `aioresolve probe`",
    "as libtpu_ports": "with --libtpu-port to `aioresolve probe`",
}
"""How the mends in our messages, which speak to a caller of the API, are said at a command line."""

_PLACE = re.compile(r"\b(project|zone)(?:=(?=[ ,])|(?=='))")
"""Arguments that a message puts together, one or several, with or without their values."""

_OF_SHARDS = re.compile(r"\bshard=\(index, ([0-9]+)\)")
_SHARD = re.compile(r"\bshard=([0-9]+)")
"""Which part of a fleet is meant."""

_SECRETS = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=Bearer )\S+|(?<=Basic )\S+")


def exit_code(error: ResolveError) -> int:
    """Return the exit code for `error`: 2 for what the user has to correct, 3 for a deadline, else 1."""
    match error:
        case ConfigurationError() | MissingDependencyError():
            return WRONG_USAGE
        case DeadlineExceededError():
            return DEADLINE
    return COULD_NOT_RESOLVE


def as_text(error: ResolveError) -> str:
    """Return `error: ...`, one paragraph that ends in a line feed; of a wait, and below it who is missing.

    With the manifest of a ForbiddenError the whole is YAML, the paragraph a comment: it can be piped to
    `kubectl apply -f -` as it is.
    """
    if isinstance(error, IncompleteClusterError | FailedClusterError):
        return _wait_report(error)
    message = as_options(str(error))
    manifest = error.manifest if isinstance(error, ForbiddenError) else ""
    if not manifest:
        return f"error: {one_line(message)}\n"
    return f"# error: {one_line(message.removesuffix(manifest))}\n{manifest}"


def _wait_report(error: IncompleteClusterError | FailedClusterError) -> str:
    missing = {name: as_options(reason) for name, reason in error.missing.items()}
    tables = report(error.found, error.wanted, missing)
    if isinstance(error, FailedClusterError):
        message = "the cluster can become complete no more: see to what is missing, and wait again"
    else:
        within = f" within {span(error.timeout)}" if error.timeout else ""
        message = f"the cluster was not complete{within}: see to what is missing, raise --timeout,"
        message += " or wait for less"
    return f"error: {message}\n{tables}"


def as_options(message: str) -> str:
    """Return a message of ours with its mends said as they are typed at a command line."""
    for api, option in AS_OPTIONS.items():
        message = message.replace(api, option)
    return _PLACE.sub(r"--\1", _SHARD.sub(r"--shards \1", _OF_SHARDS.sub(r"--shards INDEX/\1", message)))


def as_traceback(error: BaseException) -> str:
    """Return the traceback of `error` and of its causes, with whatever looks like a credential left out.

    Our messages hold none; those of the libraries below may quote a proxy's URL or a header.
    """
    return _SECRETS.sub("(secret)", "".join(traceback.format_exception(error)).rstrip())
