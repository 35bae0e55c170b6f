"""Recorded errors of gRPC, and the probe errors that they are translated to."""

import pytest

from aioresolve.probe.channels import deadline_error, status_error

HOST = "10.0.0.1:8470"
METHOD = "/tensorflow.WorkerService/GetStatus"
PREFIX = "failed to connect to all addresses; last error: "
ADDRESS_PREFIX = f"{PREFIX}UNKNOWN: ipv4:10.0.0.1:8470: "

UNAVAILABLE = [
    ("refused", f"{ADDRESS_PREFIX}Failed to connect to remote host: Connection refused"),
    ("refused", f"{ADDRESS_PREFIX}Failed to connect to remote host: connect: Connection refused (111)"),
    ("unreachable", f"{ADDRESS_PREFIX}recvmsg:Connection reset by peer (104)"),
    ("unreachable", f"{ADDRESS_PREFIX}connection attempt timed out before receiving SETTINGS frame"),
    ("unreachable", "Stream removed (Socket closed)"),
    ("unreachable", "errors resolving no-such-host.invalid:1: [field:hostname lookup error: not found]"),
    (
        "tls",
        f"{ADDRESS_PREFIX}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: WRONG_VERSION_NUMBER",
    ),
    ("tls", f"{ADDRESS_PREFIX}Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7"),
    (
        "tls",
        f"{ADDRESS_PREFIX}Custom verification check failed with error: Hostname Verification Check failed.",
    ),
    ("malformed", f"{ADDRESS_PREFIX}Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame)"),
    ("malformed", f"{ADDRESS_PREFIX}Trying to connect an http1.x server (HTTP status 400)"),
]
"""Recorded details of the status UNAVAILABLE, from gRPC 1.66 to 1.85."""

STATUSES = [
    ("too_large", "RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (6000000 vs. 4194304)"),
    ("failed", "RESOURCE_EXHAUSTED", "too many requests"),
    ("unimplemented", "UNIMPLEMENTED", "Method not found!"),
    ("unimplemented", "UNIMPLEMENTED", "Received http2 header with status: 404"),
    ("denied", "PERMISSION_DENIED", "no"),
    ("denied", "UNAUTHENTICATED", "no"),
    ("failed", "INTERNAL", ""),
]

REMEDIES = {"malformed": "listens there.", "too_large": "listens there.", "denied": "of the ProbeChannels."}


@pytest.mark.parametrize(("code", "details"), UNAVAILABLE)
def test_connection_errors_are_distinguished_by_the_text_of_grpc(code: str, details: str) -> None:
    error = status_error(HOST, METHOD, "UNAVAILABLE", details)
    assert (error.code, error.status, error.address) == (code, "UNAVAILABLE", HOST)
    assert error.retryable is (code in {"refused", "unreachable"})
    assert HOST in str(error)
    assert str(error).endswith(REMEDIES.get(code, ""))
    assert PREFIX not in str(error)


def test_responses_of_the_worker_are_distinguished_by_their_status() -> None:
    for code, status, details in STATUSES:
        error = status_error(HOST, METHOD, status, details)
        assert (error.code, error.address) == (code, HOST), status
        assert error.retryable is (details == "too many requests")
        assert details in str(error)
        assert str(error).endswith(REMEDIES.get(code, ""))
    assert all(status_error(HOST, METHOD, status, "").retryable for status in ("ABORTED", "UNKNOWN"))
    assert f"({'w ' * 148}...)" in str(status_error(HOST, METHOD, "INTERNAL", "w\n" * 10_000))


def test_deadline_error_shows_whether_the_worker_was_connected() -> None:
    connected = deadline_error(HOST, METHOD, 5.0, is_connected=True)
    silent = deadline_error(HOST, METHOD, 5.0, is_connected=False)
    assert "accepted the connection but did not respond to GetStatus within 5 s" in str(connected)
    assert "no gRPC connection" in str(silent)
    assert connected.code == silent.code == "deadline"
    assert connected.retryable
