"""What follows after a watch ends or fails: resume it, list again, or give up."""

import asyncio
import socket
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from aioresolve import (
    APIError,
    ConnectionFailedError,
    DeadlineExceededError,
    ForbiddenError,
    ProtocolError,
    UnauthorizedError,
)
from aioresolve.kubernetes.reflector import ClusterWatch, Reflector

from .samples import watch_policy
from .watched_cluster import EVAL, TRAIN, bookmark, new_cache

BROKEN = ConnectionFailedError("the connection broke")
EXPIRED = APIError("gone", status=410)
FORBIDDEN = ForbiddenError("the user may not watch", status=403)
UNKNOWN_NAME = ConnectionFailedError("the name was not found", retryable=False)
UNKNOWN_NAME.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


API: Any = SimpleNamespace(host="https://server", source="a test", is_closed=False)


def new_state() -> Reflector:
    """Return the reflector of a query that was never listed."""
    policy = watch_policy(first_wait=1.0, longest_wait=5.0)
    return Reflector(API, new_cache().stores[TRAIN], lambda: None, policy, timeout=30.0)


def listed_state() -> Reflector:
    """Return the reflector of a query that was listed."""
    watch = new_state()
    watch._replace([], "1")
    return watch


@pytest.mark.parametrize(
    ("lifetime", "has_event", "is_healthy"),
    [(0.5, True, False), (0.75, True, True), (5.0, False, False), (5.5, False, True)],
)
def test_backoff_is_reset_only_after_a_healthy_watch(
    lifetime: float, has_event: bool, is_healthy: bool
) -> None:
    watch = listed_state()
    for _ in range(5):
        watch.on_failure(BROKEN)
    watch.on_open(100.0)
    if has_event:
        watch._apply([bookmark(1)])
    assert watch.on_close(100.0 + lifetime) == pytest.approx(lifetime)
    assert watch.on_close(200.0) is None
    assert (watch.on_failure(BROKEN) <= 1.0) == is_healthy


def test_name_that_is_not_found_is_final_only_before_the_first_list() -> None:
    with pytest.raises(ConnectionFailedError, match="was not found"):
        new_state().on_failure(UNKNOWN_NAME)
    watch = listed_state()
    for _ in range(50):
        watch.on_failure(UNKNOWN_NAME)
    assert watch.error is UNKNOWN_NAME


def test_first_watch_is_given_up_after_denials_and_later_ones_never() -> None:
    first, later = listed_state(), listed_state()
    for _ in range(5):
        first.on_failure(FORBIDDEN)
        first.on_failure(BROKEN)  # an outage in between permits no more denials
    with pytest.raises(ForbiddenError):
        first.on_failure(FORBIDDEN)
    later.on_open(0.0)
    later.on_close(600.0)
    for _ in range(50):
        later.on_failure(FORBIDDEN)
    assert later.error is FORBIDDEN


def test_expired_version_is_replaced_by_a_list_immediately_but_only_once() -> None:
    never_open, short = listed_state(), listed_state()
    short.on_open(0.0)
    short.on_close(3.0)
    for watch in (never_open, short):
        assert watch.on_failure(BROKEN) > 0.0
        assert watch.on_failure(EXPIRED) == 0.0
        for lifetime, is_immediate in ((0.1, False), (100.0, True)):
            watch.on_list()
            watch.on_open(0.0)
            watch.on_close(lifetime)
            assert (watch.on_failure(EXPIRED) == 0.0) == is_immediate


def test_failures_that_may_be_due_to_the_version_lead_to_a_list() -> None:
    error_types = {401: UnauthorizedError, 403: ForbiddenError}
    for status in (400, 401, 403, 404, 408, 410, 429, 500, 502, 503, 504):
        watch = listed_state()
        watch.on_open(0.0)
        for _ in range(10):
            watch.on_failure(error_types.get(status, APIError)("failed", status=status))
        assert watch.can_resume == (status in (401, 403, 408, 429, 502, 503)), status


def test_invalid_and_silent_watches_lead_to_a_list_and_broken_ones_do_not() -> None:
    invalid, silent, broken = listed_state(), listed_state(), listed_state()
    silence = DeadlineExceededError("silent")
    invalid.on_failure(ProtocolError("invalid"))
    silent.on_failure(silence)
    for _ in range(10):
        broken.on_failure(BROKEN)
    assert [watch.can_resume for watch in (invalid, silent, broken)] == [False, False, True]
    assert [watch.error for watch in (invalid, silent, broken)] == [None, silence, BROKEN]


def test_query_is_stale_since_it_was_current_for_the_last_time() -> None:
    watch = listed_state()
    listed_by = datetime.now(UTC)
    for _ in range(2):
        watch.on_failure(BROKEN)
    since = watch.stale_since
    assert since is not None
    assert since <= listed_by
    watch.on_failure(BROKEN)
    assert watch.stale_since == since
    watch.on_open(0.0)
    watch.on_replay()
    current_at = datetime.now(UTC)
    watch.on_gap(2.0)
    since = watch.stale_since
    assert since is not None
    assert since >= current_at


def test_query_is_current_when_a_watch_follows_its_list_or_has_reported_what_was_missed() -> None:
    never_listed, failing = new_state(), listed_state()
    never_listed.on_failure(BROKEN)
    never_listed.on_list()
    assert never_listed.error is BROKEN
    assert not never_listed.on_open(0.0)
    for _ in range(2):
        failing.on_failure(BROKEN)
    assert failing.on_open(0.0)
    assert failing.error is BROKEN
    for watch in (never_listed, failing):
        watch.on_replay()
        assert watch.error is None


def test_gap_without_a_watch_reports_the_last_failure_or_else_itself() -> None:
    watch, failed = listed_state(), listed_state()
    failed.on_failure(BROKEN)
    assert failed.error is None
    for each in (watch, failed):
        each.on_gap(2.0)
    assert "it is not established after 2 s" in str(watch.error)
    assert failed.error is BROKEN


async def test_gap_is_not_reported_once_a_watch_is_open() -> None:
    watch, later = listed_state(), asyncio.Event()
    for _ in range(2):  # after a list, and after a watch
        watch._expect_watch(0.0)
    watch.on_open(0.0)
    asyncio.get_running_loop().call_later(0.0, later.set)
    await later.wait()
    assert watch.error is None


def test_error_of_a_cluster_is_that_of_the_query_that_fails_for_the_longest_time() -> None:
    latest: Any = SimpleNamespace(put=lambda _: None)
    cache = new_cache({"worker": [TRAIN], "eval": [EVAL]})
    cluster = ClusterWatch(API, cache, latest, watch_policy(), timeout=30.0)
    first, second = cluster._reflectors
    second.on_failure(BROKEN)
    first.on_failure(EXPIRED)
    assert (cluster.observe().error, cluster.observe().stale_since) == (BROKEN, second.stale_since)
