"""gRPC's words, as they were seen, and what they become."""

from __future__ import annotations

import pytest

from aioresolve.errors import ProbeError
from aioresolve.probe.grpc_errors import deadline_error, no_source_error, status_error

HOST = "10.0.0.1:8470"
METHOD = "/tensorflow.WorkerService/GetStatus"
PREFIX = "failed to connect to all addresses; last error: "
THERE = f"{PREFIX}UNKNOWN: ipv4:10.0.0.1:8470: "

ON_THE_WAY = [
    ("refused", f"{THERE}Failed to connect to remote host: Connection refused"),
    ("refused", f"{THERE}Failed to connect to remote host: connect: Connection refused (111)"),
    ("unreachable", f"{THERE}recvmsg:Connection reset by peer (104)"),
    ("unreachable", f"{THERE}connection attempt timed out before receiving SETTINGS frame"),
    ("unreachable", "Stream removed (Socket closed)"),
    ("unreachable", "errors resolving no-such-host.invalid:1: [field:hostname lookup error: not found]"),
    ("tls", f"{THERE}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: WRONG_VERSION_NUMBER"),
    ("tls", f"{THERE}Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7"),
    ("tls", f"{THERE}Custom verification check failed with error: Hostname Verification Check failed."),
    ("malformed", f"{THERE}Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame)"),
    ("malformed", f"{THERE}Trying to connect an http1.x server (HTTP status 400)"),
]
"""gRPC's details of UNAVAILABLE, from versions 1.66 to 1.85."""

ANSWERED = [
    ("too_large", "RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (6000000 vs. 4194304)"),
    ("failed", "RESOURCE_EXHAUSTED", "too many requests"),
    ("unimplemented", "UNIMPLEMENTED", "Method not found!"),
    ("unimplemented", "UNIMPLEMENTED", "Received http2 header with status: 404"),
    ("denied", "PERMISSION_DENIED", "no"),
    ("denied", "UNAUTHENTICATED", "no"),
    ("failed", "INTERNAL", ""),
]


@pytest.mark.parametrize(("code", "details"), ON_THE_WAY)
def test_what_happens_on_the_way_is_told_apart_by_grpcs_words(code: str, details: str) -> None:
    error = status_error(HOST, METHOD, "UNAVAILABLE", details)
    assert (error.code, error.address) == (code, HOST)
    assert error.retryable is (code in {"refused", "unreachable"})
    assert HOST in str(error)
    assert PREFIX not in str(error)


@pytest.mark.parametrize(("code", "status", "details"), ANSWERED)
def test_what_the_worker_answers_is_told_apart_by_its_status(code: str, status: str, details: str) -> None:
    error = status_error(HOST, METHOD, status, details)
    assert (error.code, error.address) == (code, HOST)
    assert details in str(error)


def test_a_failure_that_may_pass_is_retryable() -> None:
    assert status_error(HOST, METHOD, "ABORTED", "").retryable
    assert not status_error(HOST, METHOD, "INTERNAL", "").retryable


def test_a_server_that_has_much_to_say_is_cut_short() -> None:
    assert len(str(status_error(HOST, METHOD, "INTERNAL", "word\n" * 10_000))) < 400


def test_a_worker_that_is_connected_and_one_that_is_not_run_out_of_time_in_other_words() -> None:
    connected = deadline_error(HOST, METHOD, 5.0, is_connected=True)
    silent = deadline_error(HOST, METHOD, 5.0, is_connected=False)
    assert "accepted the connection but did not respond to GetStatus within 5 s" in str(connected)
    assert "no gRPC connection" in str(silent)
    assert connected.code == silent.code == "deadline"
    assert connected.retryable


def test_a_refusal_is_not_called_death() -> None:
    refused = status_error(HOST, METHOD, "UNAVAILABLE", f"{THERE}connect: Connection refused (111)")
    unimplemented = ProbeError("another service", address="10.0.0.1:8431", code="unimplemented")
    error = no_source_error(HOST, refused, unimplemented)
    assert (error.code, error.address, error.retryable) == ("refused", HOST, True)
    assert "The worker may still be running" in str(error)
    assert str(error).count(HOST) == 1
    assert "libtpu_ports" in str(error)
