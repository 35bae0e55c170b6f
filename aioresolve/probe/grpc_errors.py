"""Errors of gRPC calls as `ProbeError`."""

from __future__ import annotations

import re
import textwrap

from aioresolve.errors import ProbeError

# gRPC has one status, UNAVAILABLE, for all failures of a connection; only its text distinguishes them.
REFUSED = re.compile(r"connection refused|actively refused", re.IGNORECASE)
TLS = re.compile(r"\b(tls|ssl) handshake|SSL_ERROR|hostname verification|peer name", re.IGNORECASE)
NOT_GRPC = re.compile(r"expected SETTINGS frame|http1\.x server|parsing HTTP/2", re.IGNORECASE)
LAST_ERROR = "last error: "
TOO_LARGE = re.compile(r"larger than max", re.IGNORECASE)

DENIED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
UNAVAILABLE = "UNAVAILABLE"
RETRYABLE = frozenset({"ABORTED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN"})

CHECK_PROGRAM = "Check which program listens there."


def status_error(address: str, method: str, status: str, details: str) -> ProbeError:
    """Return the error for a call that ended with a gRPC status other than OK and DEADLINE_EXCEEDED."""
    text = textwrap.shorten(details.rpartition(LAST_ERROR)[2], 300, placeholder=" ...") or "no details"
    name, hint, retryable = method.rpartition("/")[2], None, False
    if status == "UNIMPLEMENTED":
        code, summary = "unimplemented", f"{address} is a gRPC server without {name} ({text})"
    elif status == "RESOURCE_EXHAUSTED" and TOO_LARGE.search(details):
        code, hint = "too_large", CHECK_PROGRAM
        summary = f"{address} returned a response to {name} that is too large ({text})"
    elif status in DENIED:
        code, hint = "denied", "Check the credentials and the metadata of the ProbeChannels."
        summary = f"{address} denied {name}: {status} ({text})"
    elif status != UNAVAILABLE:
        code, retryable = "failed", status in RETRYABLE
        summary = f"{address} returned {status} to {name} ({text})"
    elif REFUSED.search(details):
        code, retryable = "refused", True
        summary = f"nothing listens at {address}: connection refused"
    elif TLS.search(details):
        code, summary = "tls", f"the TLS handshake with {address} failed ({text})"
        hint = "Check that the worker uses TLS, and the authority and host name of its certificate."
    elif NOT_GRPC.search(details):
        code, hint, summary = "malformed", CHECK_PROGRAM, f"{address} does not speak gRPC ({text})"
    else:
        code, retryable, hint = "unreachable", True, "If the worker uses TLS, enable it with {channels}."
        summary = f"the connection to {address} failed or broke ({text})"
    return ProbeError(summary, hint=hint, address=address, code=code, status=status, retryable=retryable)


def deadline_error(address: str, method: str, timeout: float, *, is_connected: bool) -> ProbeError:
    """Return the error for a worker that did not respond in time."""
    seconds = f"{round(timeout, 3):g}"
    if is_connected:
        name = method.rpartition("/")[2]
        summary = f"{address} accepted the connection but did not respond to {name} within {seconds} s"
    else:
        summary = (
            f"no gRPC connection to {address} within {seconds} s: the host is gone or drops packets, or the"
            " process is stopped"
        )
    return ProbeError(summary, address=address, code="deadline", status="DEADLINE_EXCEEDED", retryable=True)


def no_source_error(address: str, no_tensorflow: ProbeError, no_libtpu: ProbeError) -> ProbeError:
    """Return the error for a worker without a TensorFlow server whose libtpu failed too."""
    # A libtpu that did not respond in time may do so later.
    cause = no_libtpu if no_libtpu.code == "deadline" else no_tensorflow
    return ProbeError(
        f"{no_tensorflow.summary}; libtpu did not report devices either: {no_libtpu.summary}",
        hint="The worker may still be running. Start a tf.distribute.Server or a program that uses the TPU"
        " there, and pass its TPU_RUNTIME_METRICS_PORTS as {libtpu_ports}.",
        address=address,
        code=cause.code,
        status=cause.status,
        retryable=no_tensorflow.retryable or no_libtpu.retryable,
    )
