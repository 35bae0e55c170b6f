"""Replays: the loopback API server sends, byte for byte, what an API server of Kubernetes 1.36 sent.

`recorded/` has responses with their status and headers. Versions and uids, of which every server has its own,
are compared by their order; dates, and the ids of audits and of flow control, are not compared.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aioresolve.testing import KubernetesServer, pod

from .client import NAMESPACE, TABLE, Response, bearer, fetch, open_watch, recorded, recorded_pods

SLICES = "/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CURL = {"User-Agent": "curl/8.5.0"}
ROWS = {"Accept": TABLE}
NO_OBJECT = {"includeObject": "None"}
TRAIN = {"labelSelector": "job-name=train"}

NOT_COMPARED = {"audit-id", "date", "content-length", "transfer-encoding"}
VERSIONS = re.compile(
    r'(?<=resourceVersion":")\d+|(?<=resourceVersion": ")\d+|(?<="rv":)\d+'
    r"|(?<=current: )\d+|(?<=version: 1 \()\d+"
)
UIDS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TOKENS = re.compile(r'(?<="continue":")[\w-]+')


def comparable(body: bytes) -> str:
    """Return `body` with the rank of each version, and the number of each uid, in place of it."""
    text = TOKENS.sub(lambda token: base64.urlsafe_b64decode(f"{token[0]}==").decode(), body.decode())
    ranks = {version: str(rank) for rank, version in enumerate(sorted(set(VERSIONS.findall(text)), key=int))}
    uids: dict[str, str] = {}
    text = VERSIONS.sub(lambda version: ranks[version[0]], text)
    return UIDS.sub(lambda uid: uids.setdefault(uid[0], f"uid-{len(uids)}"), text)


def assert_equal(got: Response, expected: Response) -> None:
    assert comparable(got.body) == comparable(expected.body)
    heads = []
    for response in (got, expected):
        headers = {key.lower(): value for key, value in response.headers.items()}
        heads.append({key: "" if "-pf-" in key else headers[key] for key in headers.keys() - NOT_COMPARED})
    assert (got.status, heads[0]) == (expected.status, heads[1])


def server_at(time: str, objects: Iterable[Mapping[str, Any]], **users: Any) -> KubernetesServer:
    """Return a server with these objects and at least one later write, at this time of the recording."""
    now = datetime.fromisoformat(time).replace(tzinfo=UTC)
    server = KubernetesServer(objects, clock=lambda: now, **users)
    server.compact()
    return server


@pytest.mark.parametrize(
    ("name", "headers", "query"),
    [
        ("list-json-all-states", {}, {}),
        ("list-table-all-states", ROWS, NO_OBJECT),
        ("list-table-metadata", ROWS, TRAIN),
        ("list-table-limit2", ROWS, NO_OBJECT | TRAIN | {"limit": "2"}),
        ("error-400-continue", {}, {"continue": "gYGB"}),
        ("error-400-fieldselector", {}, {"fieldSelector": "status.nothing=x"}),
        ("error-400-selector", {}, {"labelSelector": "a===b"}),
        ("error-406", {"Accept": "application/xml"}, {}),
        ("list-exact-410", {}, {"resourceVersion": "1", "resourceVersionMatch": "Exact"}),
        ("list-rv-too-large", {}, {"resourceVersion": "99999999"}),
        ("watch-410-event", {}, {"watch": "1", "resourceVersion": "1"}),
    ],
)
async def test_response_for_pods_is_that_of_a_real_server(
    name: str, headers: dict[str, str], query: dict[str, str]
) -> None:
    async with server_at("2026-11-20T15:39:52", recorded_pods()) as server:
        got = await fetch(server, NAMESPACE, headers=headers, query=query)
    assert_equal(got, recorded(name))


@pytest.mark.parametrize(
    ("name", "path", "headers"),
    [
        ("error-401", "/api/v1/pods", bearer("wrong")),
        ("error-403-anonymous", "/api/v1/pods", {}),
        ("error-403-namespace", "/api/v1/namespaces/default/pods", bearer("l")),
        ("error-404", f"{NAMESPACE}/none", bearer("l")),
        ("list-missing-namespace", "/api/v1/namespaces/nowhere/pods", bearer("a")),
    ],
)
async def test_response_to_a_user_is_that_of_a_real_server(
    name: str, path: str, headers: dict[str, str]
) -> None:
    allow = {"admin": None, "limited": {"ml"}}
    async with KubernetesServer(tokens={"a": "admin", "l": "limited"}, allow=allow, anonymous=True) as server:
        got = await fetch(server, path, headers=headers)
    assert_equal(got, recorded(name))


async def test_expired_token_is_exchanged_for_one_of_the_rest_as_by_a_real_server() -> None:
    async with server_at("2026-11-20T15:41:13", recorded_pods()) as server:
        first = await fetch(server, NAMESPACE, limit="2", query=TRAIN)
        server.compact()
        token = first.json["metadata"]["continue"]
        expired = await fetch(server, NAMESPACE, limit="2", query={"continue": token} | TRAIN)
        token = expired.json["metadata"]["continue"]
        rest = await fetch(server, NAMESPACE, query={"continue": token} | TRAIN)
    assert_equal(expired, recorded("error-410-continue-expired"))
    assert rest.names == ["train-10", "train-2"]


async def test_watch_begins_with_the_rows_of_a_real_server() -> None:
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "timeoutSeconds": "1"}
    expected = recorded("watch-list-table").body.splitlines()
    async with (
        server_at("2026-11-20T15:40:01", recorded_pods()) as server,
        open_watch(
            server, query | TRAIN | NO_OBJECT, path=NAMESPACE, accept=TABLE, allowWatchBookmarks="1"
        ) as watch,
    ):
        lines = [await watch.line() for _ in expected]
    assert comparable(b"".join(lines)) == comparable(b"\n".join(expected) + b"\n")


async def test_watch_follows_a_pod_with_the_rows_of_a_real_server() -> None:
    now = datetime(2026, 11, 20, 15, 40, 39, tzinfo=UTC)
    path = f"{NAMESPACE}/live-0"
    metadata = {"name": "live-0", "labels": {"job-name": "live"}}
    spec = {"nodeName": "node-a", "containers": [{"name": "main", "image": "t"}]}
    ready = {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}}
    status = {"phase": "Running", "podIPs": [{"ip": "10.8.2.1"}], "containerStatuses": [ready]}
    patch = {"Content-Type": "application/merge-patch+json"}
    query = NO_OBJECT | {"labelSelector": "job-name=live", "resourceVersion": "1"}
    expected = recorded("watch-live-table").body.splitlines()
    async with (
        KubernetesServer(clock=lambda: now) as server,
        open_watch(server, query, path=NAMESPACE, accept=TABLE, allowWatchBookmarks="1") as watch,
    ):
        await fetch(server, NAMESPACE, "POST", body={"metadata": metadata, "spec": spec})
        now += timedelta(seconds=1)
        await fetch(server, f"{path}/status", "PATCH", headers=patch, body={"status": status})
        now += timedelta(seconds=1)
        for label in ("other", "live"):
            changed = {"metadata": {"labels": {"job-name": label}}}
            await fetch(server, path, "PATCH", headers=patch, body=changed)
        await fetch(server, path, "DELETE", gracePeriodSeconds="0")
        server.bookmark()
        lines = [await watch.line() for _ in expected]
    assert comparable(b"".join(lines)) == comparable(b"\n".join(expected) + b"\n")


def recorded_slice() -> dict[str, Any]:
    return {"kind": "EndpointSlice", **recorded("list-endpointslices").json["items"][0]}


async def test_list_of_slices_is_that_of_a_real_server() -> None:
    async with KubernetesServer([pod("a", "ml"), recorded_slice()]) as server:
        got = await fetch(server, SLICES, headers=CURL)
    assert_equal(got, recorded("list-endpointslices"))


async def test_watch_of_slices_is_that_of_a_real_server() -> None:
    async with (
        KubernetesServer([recorded_slice()]) as server,
        open_watch(server, path=SLICES, resourceVersion="1") as watch,
    ):
        line = await watch.line()
    assert comparable(line) == comparable(recorded("watch-endpointslices").body)


async def test_access_review_is_that_of_a_real_server() -> None:
    body = {"spec": {"resourceAttributes": {"namespace": "ml", "verb": "list", "resource": "pods"}}}
    async with KubernetesServer() as server:
        got = await fetch(server, REVIEWS, "POST", headers=CURL, body=body)
    expected = recorded("selfsubjectaccessreview").json
    expected["metadata"].pop("managedFields")
    assert (got.status, json.dumps(got.json)) == (201, json.dumps(expected))


async def test_query_that_a_real_server_refuses_is_refused() -> None:
    async with KubernetesServer() as server:
        got = await fetch(server, NAMESPACE, headers=CURL, watch="1", sendInitialEvents="true")
    assert_equal(got, recorded("watchlist-refused-no-match"))
