"""The cache of a token: fetched once, kept while fresh, renewed on request."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import anyio
import pytest

from aioresolve._core.secrets import CrossLoopLock, TokenCache
from aioresolve.errors import CredentialsError


@dataclass
class Token:
    """A token with a name."""

    name: str
    is_fresh: bool = True
    is_valid: bool = True


class Fetches:
    """A fetch that waits until it may continue, and counts its calls: the tokens are "1", "2", ..."""

    def __init__(self, *, is_fresh: bool = True, is_valid: bool = True) -> None:
        self.started = 0
        self.running = asyncio.Event()
        self.may_continue = asyncio.Event()
        self.may_continue.set()
        self.error: CredentialsError | None = None
        self.is_fresh = is_fresh
        self.is_valid = is_valid

    async def __call__(self) -> Token:
        self.started += 1
        number = self.started
        self.running.set()
        await self.may_continue.wait()
        if self.error is not None:
            raise self.error
        return Token(str(number), self.is_fresh, self.is_valid)


async def test_token_is_fetched_at_the_first_request_and_then_kept_until_it_is_renewed() -> None:
    fetch, cache = Fetches(), TokenCache[Token]()
    assert cache.token is None
    assert [(await cache.get(fetch)).name for _ in range(3)] == ["1", "1", "1"]
    assert [(await cache.renew(fetch)).name for _ in range(2)] == ["2", "3"]


async def test_token_is_fetched_again_if_it_is_too_old_or_not_fresh_and_not_young() -> None:
    for min_age, max_age, is_fresh, fetched in (
        (0.0, 0.0, True, 3),
        (0.0, 1000.0, True, 1),
        (1000.0, None, False, 1),
        (0.0, None, False, 3),
    ):
        fetch = Fetches(is_fresh=is_fresh)
        cache = TokenCache[Token](min_age=min_age, max_age=max_age)
        for _ in range(3):
            await cache.get(fetch)
        assert fetch.started == fetched


async def test_age_of_a_token_counts_from_its_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, cache = Fetches(), TokenCache[Token](max_age=1000.0)
    for now, name in ((0.0, "1"), (10**6, "2"), (10**6 + 999, "2"), (10**6 + 1000, "3")):
        monkeypatch.setattr("aioresolve._core.secrets.monotonic", lambda now=now: now)
        assert (await cache.get(fetch)).name == name


@pytest.mark.parametrize(("is_valid", "retryable"), [(True, True), (True, False), (False, True)])
async def test_valid_token_is_used_while_fetching_fails_for_a_retryable_reason(
    is_valid: bool, retryable: bool
) -> None:
    token = Token("0", is_fresh=False, is_valid=is_valid)
    fetch, cache = Fetches(), TokenCache(token)
    fetch.error = CredentialsError("no", retryable=retryable)
    if is_valid and retryable:
        assert await cache.get(fetch) is token
    else:
        with pytest.raises(CredentialsError):
            await cache.get(fetch)


async def test_concurrent_renewals_share_one_fetch() -> None:
    fetch, cache = Fetches(), TokenCache[Token]()
    fetch.may_continue.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(cache.renew(fetch)) for _ in range(10)]
        await fetch.running.wait()
        fetch.may_continue.set()
    assert [task.result().name for task in tasks] == ["1"] * 10
    assert fetch.started == 1


async def test_concurrent_requests_share_one_failure_with_an_error_for_each() -> None:
    fetch, cache = Fetches(), TokenCache[Token]()
    fetch.may_continue.clear()
    fetch.error = CredentialsError("no", tried=("a",), retryable=True)
    fetch.error.__cause__ = OSError()
    tasks = [asyncio.create_task(cache.get(fetch)) for _ in range(10)]
    await fetch.running.wait()
    fetch.may_continue.set()
    await asyncio.wait(tasks)
    errors = [task.exception() for task in tasks]
    assert fetch.started == 1
    assert len({id(error) for error in errors}) == 10
    for error in errors:
        assert isinstance(error, CredentialsError)
        assert (str(error), error.tried, error.retryable) == ("no", ("a",), True)
        assert isinstance(error.__cause__, OSError)
    fetch.error = None  # which is not kept
    assert (await cache.get(fetch)).name == "2"


async def test_next_waiting_task_repeats_a_cancelled_fetch() -> None:
    fetch, cache = Fetches(), TokenCache[Token]()
    fetch.may_continue.clear()
    first = asyncio.create_task(cache.renew(fetch))
    await fetch.running.wait()
    second = asyncio.create_task(cache.renew(fetch))
    await asyncio.sleep(0)
    fetch.running.clear()
    first.cancel()
    await fetch.running.wait()
    fetch.may_continue.set()
    assert (await second).name == "2"
    assert first.cancelled()


def test_lock_excludes_tasks_of_other_event_loops() -> None:
    lock = CrossLoopLock()
    inside = 0
    entered = 0

    async def work() -> None:
        nonlocal inside, entered
        for _ in range(20):
            async with lock:
                inside += 1
                await asyncio.sleep(0)
                assert inside == 1
                entered += 1
                inside -= 1

    async def loop() -> None:
        with anyio.fail_after(60):
            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(work())

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(asyncio.run, loop()) for _ in range(4)]:
            done.result()
    assert entered == 4 * 5 * 20


def test_lock_ignores_waiting_tasks_of_a_closed_loop() -> None:
    lock = CrossLoopLock()

    async def time_out() -> None:
        with anyio.move_on_after(0.01):
            async with lock:
                raise AssertionError("two tasks hold the lock")

    async def hold() -> None:
        async with lock:
            await asyncio.to_thread(asyncio.run, time_out())

    for _ in range(2):
        asyncio.run(hold())
