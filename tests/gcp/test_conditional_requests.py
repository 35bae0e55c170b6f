"""Conditional requests: entity tags of the APIs and of the metadata server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve._core.deadline import Progress
from aioresolve.errors import ProtocolError
from aioresolve.gcp.api_request import ETagCache
from aioresolve.gcp.metadata_server import MetadataServer
from aioresolve.gcp.resource_names import NodeName, QueuedResourceName
from aioresolve.gcp.tpu_api import TPUAPI
from aioresolve.testing import Answer, GoogleServer, queued_resource, tpu_node

from .loopback import MY_TPU, PROJECT, ZONE, session, to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aioresolve.gcp.client import GoogleSession
    from aioresolve.gcp.tpu_api import Node

OTHER = NodeName(PROJECT, ZONE, "other")
PATIENCE = 60.0


@asynccontextmanager
async def open_session(*, etags: bool = True) -> AsyncIterator[tuple[GoogleServer, GoogleSession]]:
    nodes = [tpu_node("my-tpu"), tpu_node("other"), queued_resource("my-request")]
    async with GoogleServer(nodes, etags=etags) as server, session(server) as google:
        yield server, google


async def node(api: TPUAPI, name: NodeName = MY_TPU) -> Node:
    return await api.node(name, Progress())


async def test_an_unchanged_node_is_the_cached_object() -> None:
    async with open_session() as (server, google):
        api = TPUAPI(google).with_cache(ETagCache())
        first = await node(api)
        assert await node(api) is first
        server.patch("my-tpu", state="PREEMPTED")
        changed = await node(api)
        assert changed.state == "PREEMPTED"
        assert await node(api) is changed


async def test_each_node_and_queued_resource_is_cached_separately() -> None:
    async with open_session() as (server, google):
        api = TPUAPI(google).with_cache(ETagCache())
        request = QueuedResourceName(PROJECT, ZONE, "my-request")
        known = [await node(api), await node(api, OTHER), await api.queued_resource(request, Progress())]
        server.patch("other", state="PREEMPTED")
        again = [await node(api), await node(api, OTHER), await api.queued_resource(request, Progress())]
    assert [new is old for new, old in zip(again, known, strict=True)] == [True, False, True]


async def test_a_304_to_an_unconditional_request_is_an_error() -> None:
    async with open_session() as (server, google):
        server.inject(Answer(304, body=b""), match=to("tpu"), times=None)
        for api in (TPUAPI(google), TPUAPI(google).with_cache(ETagCache())):
            with pytest.raises(ProtocolError):
                await node(api)


# The metadata server


async def test_a_request_with_the_known_tag_waits_for_another() -> None:
    async with GoogleServer(metadata={"instance/attributes/a": "1"}) as server:
        machine = MetadataServer(server.metadata_host)
        first = await machine.attributes_tag()
        assert first == await machine.attributes_tag()

        async def change() -> None:
            await server.until(lambda: "wait_for_change" in server.requests[-1].query)
            server.metadata["instance/attributes/b"] = "2"

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(change)
                assert await machine.attributes_tag(first, 60) != first
            query = server.requests[-1].query
            assert await machine.attributes_tag(first, 60) != first  # changed in the meantime
    assert query == {"recursive": "true", "wait_for_change": "true", "last_etag": first, "timeout_sec": "60"}


async def test_without_attributes_or_tags_the_tag_is_empty() -> None:
    async with GoogleServer() as server:
        assert await MetadataServer(server.metadata_host).attributes_tag() == ""
        server.inject(Answer(200, b"{}", {"Metadata-Flavor": "Google"}))
        assert await MetadataServer(server.metadata_host).attributes_tag("known", 60) == ""
