"""Watches of servers that send invalid events, lose data or cannot be reached: no change is missed."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aioresolve import ConfigurationError, ResolveError
from aioresolve.spec import Observation
from aioresolve.testing import Answer

from .loopback import Loopback, trusted_peer
from .samples import watch_policy
from .test_watch import is_watch, names, resume_versions, until, with_policy


def bookmark(version: int) -> bytes:
    metadata = {"resourceVersion": str(version)}
    mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}}
    return json.dumps(mark).encode() + b"\n"


async def next_error(observations: AsyncGenerator[Observation, None]) -> ResolveError:
    """Return the error of the next observation that has one."""
    with anyio.fail_after(60):
        async for observation in observations:
            if observation.error is not None:
                return observation.error
    raise AssertionError("observations never end")


async def until_members(observations: AsyncGenerator[Observation, None], *members: str) -> None:
    """Return once these pods are the members."""
    with anyio.fail_after(60):
        async for observation in observations:
            if observation.state is not None and names(observation.state) == list(members):
                return


async def test_a_failing_address_callable_ends_the_watch(loopback: Loopback) -> None:
    def address(pod: Any) -> str:
        return str({"train-0": "10.0.0.1"}[pod.metadata.name])

    loopback.add_trainers("train-0")
    async with aclosing(with_policy(loopback.resolver(address=address)).watch()) as states:
        assert names(await anext(states)) == ["train-0"]
        loopback.add_trainers("train-1")
        with anyio.fail_after(60), pytest.raises(ConfigurationError, match="ml/train-1 cannot be addressed"):
            await anext(states)


async def test_the_pods_are_listed_again_after_the_version_decreased(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    version = loopback.server.resource_version
    fault = Answer(200, body=bookmark(version + 1000) + bookmark(1))
    loopback.server.inject(fault, match=lambda request: "resourceVersion" in request.query)
    async with aclosing(with_policy(loopback.resolver()).observations()) as observations:
        await until_members(observations, "train-0")
        await until(loopback, lambda: len(resume_versions(loopback)) == 2)
        loopback.add_trainers("train-1")
        await until_members(observations, "train-0", "train-1")
    # Neither watch continues from the version that the server no longer has.
    assert set(resume_versions(loopback)) == {str(version)}


@pytest.mark.slow
async def test_a_watch_that_the_server_never_ends_is_closed_and_resumed(loopback: Loopback) -> None:
    versions: list[bytes] = []

    def respond(connection: socket.socket) -> None:
        while b"\r\n\r\n" not in (request := connection.recv(65536)):
            pass
        body = b'{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[]}'
        if b"watch=true" not in request:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return
        versions.append(request.partition(b"resourceVersion=")[2].partition(b"&")[0].partition(b" ")[0])
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        line = bookmark(9)
        some = line[:9]
        with suppress(OSError):
            while True:  # always in the middle of an event
                connection.sendall(b"%x\r\n%b\r\n" % (len(some), some))
                some = line[9:] + line[:9]
                time.sleep(0.05)

    with trusted_peer(loopback, respond):
        policy = watch_policy(3600.0, 3600.0, min_lifetime=0.3, max_lifetime=0.3, max_silence=0.5)
        resolver = with_policy(loopback.resolver(), policy)

        async def follow() -> None:
            async with aclosing(resolver.observations()) as observations:
                async for observation in observations:
                    assert observation.error is None

        following = asyncio.ensure_future(follow())
        await until(loopback, lambda: len(versions) >= 3)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert versions[:3] == [b"7", b"9", b"9"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"type": "RENAMED", "object": {}}\n', "invalid watch event from https://"),
        (b"<html>", "the Content-Type is 'text/html'"),
        (b'{"type": "ADDED", "obj', "in the middle of an event"),
        (
            b'{"type": "ERROR", "object": {"message": "etcd is full"}}\n',
            "500 for the watch of selector 'app=train' in all namespaces ('etcd is full'): the server is o",
        ),
        (
            b'{"type": "ERROR", "object": {"code": 410}}\n',
            "(no reason given): it cannot resume from the last resourceVersion, so the pods are listed again",
        ),
    ],
)
async def test_a_change_is_not_missed_if_the_watch_sends_an_error_or_an_invalid_event(
    loopback: Loopback, line: bytes, message: str
) -> None:
    loopback.add_trainers("train-0")
    body = bookmark(loopback.server.resource_version) + line
    headers = {"Content-Type": "Text/HTML; charset=utf-8"} if line == b"<html>" else {}
    loopback.server.inject(Answer(200, body, headers), match=is_watch, times=None)
    async with aclosing(with_policy(loopback.resolver()).observations()) as observations:
        error = await next_error(observations)
        loopback.server.clear_faults()
        assert message in str(error)
        loopback.add_trainers("train-1")
        await until_members(observations, "train-0", "train-1")
