"""gRPC's statuses and words for a failed call, as a `ProbeError` that says what happened and what to do."""

from __future__ import annotations

import re
import textwrap

from aioresolve.errors import ProbeError

__all__ = [
    "deadline_passed",
    "failed_call",
    "given_up",
    "never_asked",
    "nobody_tells",
    "speaks_tls_error",
]

# gRPC has one status, UNAVAILABLE, for all that can happen on the way, and tells it in words.
REFUSED = re.compile(r"connection refused|actively refused", re.IGNORECASE)
TLS = re.compile(r"\b(tls|ssl) handshake|SSL_ERROR|hostname verification|peer name", re.IGNORECASE)
NO_GRPC = re.compile(r"expected SETTINGS frame|http1\.x server|parsing HTTP/2", re.IGNORECASE)
LAST_ERROR = "last error: "
TOO_LARGE = re.compile(r"larger than max", re.IGNORECASE)

DENIED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
RETRYABLE = frozenset({"ABORTED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN"})


def failed_call(address: str, method: str, status: str, details: str) -> ProbeError:
    """Return the error for a call that ended with a gRPC status other than OK and DEADLINE_EXCEEDED.

    Args:
        address: the worker asked, `host:port`.
        method: what was asked of it, `/package.Service/Method`.
        status: the name of the gRPC status.
        details: gRPC's own words.
    """
    said = textwrap.shorten(details.rpartition(LAST_ERROR)[2], 300, placeholder=" ...") or "without a word"
    asked = method.rpartition("/")[2]
    match status:
        case "UNIMPLEMENTED":
            what = f"{address} is a gRPC server without {asked} ({said})"
            return ProbeError(what, address=address, code="unimplemented")
        case "RESOURCE_EXHAUSTED" if TOO_LARGE.search(details):
            what = f"{address} answered {asked} with more than is taken ({said}); see what listens there"
            return ProbeError(what, address=address, code="too_large")
        case _ if status in DENIED:
            what = (
                f"{address} does not let us ask {asked}: {status} ({said}); see its credentials and metadata"
            )
            return ProbeError(what, address=address, code="denied")
        case "UNAVAILABLE":
            return _no_connection(address, details, said)
    return ProbeError(
        f"{address} answered {asked} with {status} ({said})",
        address=address,
        code="failed",
        retryable=status in RETRYABLE,
    )


def _no_connection(address: str, details: str, said: str) -> ProbeError:
    if REFUSED.search(details):
        what = f"nothing listens at {address}: connection refused"
        return ProbeError(what, address=address, code="refused", retryable=True)
    if TLS.search(details):
        what = (
            f"no TLS with {address} ({said}); see that it speaks TLS, and which authority and name it shows"
        )
        return ProbeError(what, address=address, code="tls")
    if NO_GRPC.search(details):
        what = f"{address} does not speak gRPC ({said}); see which program listens there"
        return ProbeError(what, address=address, code="malformed")
    what = f"no connection with {address}, or it broke ({said})"
    return ProbeError(what, address=address, code="unreachable", retryable=True)


def speaks_tls_error(address: str) -> ProbeError:
    """Return the error for a worker that was asked in plain and speaks TLS."""
    return ProbeError(
        f"{address} requires TLS, but the request was sent without TLS",
        hint="Enable TLS with {channels}.",
        address=address,
        code="tls",
    )


def deadline_passed(address: str, method: str, timeout: float, *, connected: bool) -> ProbeError:
    """Return the error for a worker that did not answer in time.

    Args:
        address: the worker asked, `host:port`.
        method: what was asked of it, `/package.Service/Method`.
        timeout: the seconds it had.
        connected: whether there was a gRPC connection by then.
    """
    asked = method.rpartition("/")[2]
    if connected:
        what = f"{address} is connected and did not answer {asked} within {timeout:g} s"
    else:
        what = (
            f"no gRPC connection with {address} within {timeout:g} s: the host is gone, drops packets, or its"
            " process is stopped"
        )
    return ProbeError(what, address=address, code="deadline", retryable=True)


def nobody_tells(address: str, no_tensorflow: ProbeError, no_libtpu: ProbeError) -> ProbeError:
    """Return the error for a worker without a TensorFlow server whose libtpu does not tell either."""
    return ProbeError(
        f"{no_tensorflow.summary}; and libtpu does not report devices either: {no_libtpu.summary}",
        hint="The worker may still be running. Start a tf.distribute.Server there, or a program that holds"
        " the TPU, and pass its TPU_RUNTIME_METRICS_PORTS as {libtpu_ports}.",
        address=address,
        code=no_tensorflow.code,
        retryable=no_tensorflow.retryable or no_libtpu.retryable,
    )


def given_up(address: str, timeout: float) -> ProbeError:
    """Return the error for a worker that was being asked when the time for all of them was over."""
    what = f"{address} had not answered when the {timeout:g} s for all workers were over"
    return ProbeError(what, address=address, code="deadline", retryable=True)


def never_asked(address: str, timeout: float) -> ProbeError:
    """Return the error for a worker whose turn never came."""
    return ProbeError(
        f"{address} was not probed within the {timeout:g} s for all workers",
        hint="Raise {timeout} or {max_concurrency}.",
        address=address,
        code="deadline",
        retryable=True,
    )
