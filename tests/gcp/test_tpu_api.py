"""The Cloud TPU API: one node or all nodes, of one zone or of all zones."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve._core.deadline import Progress
from aioresolve.errors import ConfigurationError, ForbiddenError, ProtocolError
from aioresolve.gcp.resource_names import NodeName, QueuedResourceName
from aioresolve.gcp.tpu_api import TPUAPI
from aioresolve.testing import Answer, GoogleServer, tpu_node

from .loopback import PROJECT, ZONE, error_from, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aioresolve.gcp.tpu_api import Node

pytestmark = pytest.mark.usefixtures("no_leak")

ELSEWHERE = f"projects/{PROJECT}/locations/europe-west4-a/nodes/far"


@asynccontextmanager
async def serving(
    *resources: dict[str, Any], version: Any = "v2", **arguments: Any
) -> AsyncIterator[tuple[GoogleServer, TPUAPI]]:
    """A server with these resources, and its API."""
    async with GoogleServer(resources, **arguments) as server, session(server) as opened:
        yield server, TPUAPI(opened, version)


def node(name: str) -> NodeName:
    return NodeName(PROJECT, ZONE, name)


def ids(nodes: tuple[Node, ...]) -> list[str]:
    return [item.node_name.name for item in nodes]


async def test_nodes_are_listed_for_one_zone_or_all_zones() -> None:
    async with serving(tpu_node("a"), tpu_node("b"), tpu_node(ELSEWHERE)) as (_, api):
        assert ids((await api.nodes(PROJECT, ZONE, Progress())).nodes) == ["a", "b"]
        assert ids((await api.nodes(PROJECT, "europe-west4-a", Progress())).nodes) == ["far"]
        assert ids((await api.nodes(PROJECT, "-", Progress())).nodes) == ["far", "a", "b"]
        assert (await api.nodes(PROJECT, "us-west1-a", Progress())).nodes == ()


@pytest.mark.parametrize(
    ("zone", "scope"),
    [
        (ZONE, f"TPU nodes of projects/{PROJECT}/locations/{ZONE}"),
        ("-", f"TPU nodes of project {PROJECT}"),
    ],
)
async def test_the_list_of_a_project_is_described_without_a_zone(zone: str, scope: str) -> None:
    progress = Progress()
    async with serving() as (server, api):
        await api.nodes(PROJECT, zone, progress)
        assert [request.query for request in server.requests] == [{"pageSize": "500"}]
        server.denied.add("tpu.nodes.list")
        error = await error_from(api.nodes(PROJECT, zone, Progress()))
    assert list(progress.reached) == [scope]
    assert isinstance(error, ForbiddenError)
    assert error.scope == scope
    assert "lacks the permission tpu.nodes.list (part of roles/tpu.viewer)" in str(error)


async def test_every_page_is_requested() -> None:
    names = [f"n-{index:02}" for index in range(7)]
    async with serving(*(tpu_node(name) for name in names), page_size=3) as (server, api):
        found = await api.nodes(PROJECT, ZONE, Progress())
        assert ids(found.nodes) == names
        tokens = [request.query.get("pageToken") for request in server.requests]
        assert len(tokens) == 3
        assert tokens[0] is None
        assert len(set(tokens)) == 3


async def test_unreachable_locations_are_listed() -> None:
    async with serving(tpu_node("a"), tpu_node(ELSEWHERE), page_size=1) as (server, api):
        server.unreachable.append("europe-west4-a")
        found = await api.nodes(PROJECT, "-", Progress())
        assert ids(found.nodes) == ["a"]
        assert found.unreachable == (f"projects/{PROJECT}/locations/europe-west4-a",)


@pytest.mark.parametrize("token", ["again", "more"])
async def test_endless_pages_are_given_up(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.gcp.client.MAX_PAGES", 5)
    async with serving() as (server, api):
        for index in range(10):
            page = token if token == "again" else f"{token}{index}"
            server.inject(Answer(200, f'{{"nextPageToken": "{page}"}}'.encode()))
        error = await error_from(api.nodes(PROJECT, ZONE, Progress()))
        assert isinstance(error, ProtocolError)
        assert "its pages do not end" in str(error)
        assert len(server.requests) == (2 if token == "again" else 5)


async def test_v1_has_no_queued_resources() -> None:
    async with serving(version="v1") as (server, api):
        name = QueuedResourceName(PROJECT, ZONE, "q")
        error = await error_from(api.queued_resource(name, Progress()))
        assert isinstance(error, ConfigurationError)
        assert "Pass `api_version='v2'`" in str(error)
        assert server.requests == ()


@pytest.mark.parametrize(("project", "zone"), [("a/b", ZONE), (PROJECT, "a/b"), (PROJECT, "")])
async def test_names_are_validated_before_any_request(project: str, zone: str) -> None:
    async with serving() as (server, api):
        assert isinstance(await error_from(api.nodes(project, zone, Progress())), ConfigurationError)
        assert server.requests == ()
