"""Lists of the loopback API server: representations, selectors, pages and versions.

`test_recorded.py` compares whole responses with those of a real server, and `tests/conformance` more of them.
"""

from __future__ import annotations

import asyncio
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.testing import KubernetesServer, pod, resource_claim

from .client import NAMESPACE, Response, bearer, fetch, open_session, trainers

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims"


# Representations


async def test_large_list_is_compressed_if_the_client_accepts_it() -> None:
    headers = {"Accept-Encoding": "deflate, gzip;q=1.0"}
    async with (
        KubernetesServer([pod(f"a-{n}", size=8192) for n in range(20)]) as server,
        open_session(server) as session,
    ):
        plain = await fetch(server)
        async with session.get("/api/v1/pods", headers=headers, auto_decompress=False) as response:
            zipped = Response(response.status, response.headers, await response.read())
        small = await fetch(server, "/api/v1/namespaces/none/pods", headers=headers)
    assert (zipped.headers["Content-Encoding"], zipped.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(zipped.body) == plain.body
    assert len(plain.body) > 128 * 1024
    assert "Content-Encoding" not in small.headers


# Pages and versions

WRITES = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["add", "delete"])), max_size=20)


def write(server: KubernetesServer, name: str, action: str) -> None:
    if action == "add":
        server.add(pod(name))
    elif any(each["metadata"]["name"] == name for each in server.pods):
        server.delete(name)


@given(WRITES, st.integers(1, 5))
def test_pages_show_one_version_despite_writes_in_between(script: list[tuple[str, str]], limit: int) -> None:
    async def check() -> None:
        changes, query, listed = iter(script), dict[str, str](), list[tuple[str, str]]()
        async with KubernetesServer([pod(name) for name in "abcd"]) as server:
            before = [(each["metadata"]["name"], each["metadata"]["uid"]) for each in server.pods]
            while True:
                got = (await fetch(server, limit=str(limit), query=query)).json
                listed += [(each["metadata"]["name"], each["metadata"]["uid"]) for each in got["items"]]
                assert got["metadata"].get("remainingItemCount", 0) == len(before) - len(listed)
                if "continue" not in got["metadata"]:
                    break
                query = {"continue": got["metadata"]["continue"]}
                for _, change in zip(range(3), changes, strict=False):
                    write(server, *change)
        assert listed == before

    asyncio.run(check())


async def test_list_has_at_least_the_requested_version() -> None:
    async with KubernetesServer([pod("a")]) as server:
        version = str(server.resource_version)
        server.add(pod("b"))
        for query, expected in [
            ({}, ["a", "b"]),
            ({"limit": "5"}, ["a"]),
            ({"resourceVersionMatch": "Exact"}, ["a"]),
            ({"resourceVersionMatch": "NotOlderThan", "limit": "5"}, ["a", "b"]),
        ]:
            assert (await fetch(server, resourceVersion=version, query=query)).names == expected
        assert (await fetch(server, resourceVersion="0", limit="1")).names == ["a", "b"]


@pytest.mark.parametrize(
    ("query", "status", "problems"),
    [
        ({"resourceVersion": "x"}, 400, ['strconv.ParseUint: parsing "x": invalid syntax']),
        (
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
            422,
            ['Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'],
        ),
        ({"sendInitialEvents": "true"}, 422, ["Forbidden: sendInitialEvents is forbidden for list"]),
        (
            {"watch": "1", "resourceVersionMatch": "NotOlderThan", "continue": "x", "resourceVersion": "0"},
            422,
            [
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                "Forbidden: resourceVersionMatch is forbidden when continue is provided",
            ],
        ),
    ],
)
async def test_invalid_query_has_the_error_of_a_real_server(
    query: dict[str, str], status: int, problems: list[str]
) -> None:
    async with KubernetesServer() as server:
        got = await fetch(server, query=query)
    assert got.status == status
    assert [problem for problem in problems if problem not in got.message] == []


# Other requests


async def test_api_can_be_discovered() -> None:
    async with KubernetesServer(tokens={"a": "alice"}) as server:
        assert (await fetch(server, "/readyz")).body == b"ok"
        assert (await fetch(server, "/version")).json["gitVersion"].startswith("v1.36.")
        assert (await fetch(server, "/version", headers=bearer("wrong"))).status == 401
        assert (await fetch(server, "/api/v1")).status == 401
        groups = (await fetch(server, "/apis", headers=bearer("a"))).json["groups"]
        assert [each["name"] for each in groups] == ["discovery.k8s.io", "resource.k8s.io"]
        for path, names in {
            "/api/v1": ["nodes", "pods", "pods/status"],
            "/apis/discovery.k8s.io/v1": ["endpointslices"],
            "/apis/resource.k8s.io/v1": ["resourceclaims"],
        }.items():
            resources = (await fetch(server, path, headers=bearer("a"))).json["resources"]
            assert [each["name"] for each in resources] == names
        for method, path, status, message in [
            ("GET", "/api/v1/configmaps", 404, "the server could not find the requested resource"),
            ("GET", f"{NAMESPACE}/train-0/log", 404, "the server could not find the requested resource"),
            ("DELETE", "/api/v1/pods", 405, "the server does not allow this method"),
        ]:
            refused = await fetch(server, path, method, headers=bearer("a"))
            assert (refused.status, message in refused.message) == (status, True)


async def test_claims_can_be_read_but_not_written_by_clients() -> None:
    async with KubernetesServer([resource_claim(name, "ml") for name in ("a", "b")]) as server:
        listed = (await fetch(server, CLAIMS, fieldSelector="metadata.name=a")).json
        one = (await fetch(server, f"{CLAIMS}/a")).json
        missing = await fetch(server, f"{CLAIMS}/c")
        created = await fetch(server, CLAIMS, "POST", body=resource_claim("c", "ml"))
        server.delete("a", "ml", kind="ResourceClaim")
        left = (await fetch(server, CLAIMS)).json["items"]
    assert one == {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", **listed["items"][0]}
    assert one["status"]["allocation"]["devices"]["results"][0]["driver"] == "gpu.nvidia.com"
    assert missing.message == 'resourceclaims.resource.k8s.io "c" not found'
    assert (created.status, [each["metadata"]["name"] for each in left]) == (405, ["b"])


async def test_equal_requests_get_equal_responses_until_the_next_write() -> None:
    async with KubernetesServer(trainers()) as server:
        first, second = await fetch(server), await fetch(server)
        server.patch("train-0", "ml", patch={"metadata": {"labels": {"b": "1"}}})
        third = await fetch(server)
    assert first.body == second.body != third.body
