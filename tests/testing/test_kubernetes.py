"""The loopback API server over HTTP, compared with responses of a Kubernetes 1.36 API server."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from aioresolve.testing import KubernetesServer, pod

from .client import CREATED, NAMESPACE, TABLE, Response, bearer, failure, fetch, ml_server, open_session


async def test_empty_list_equals_that_of_a_real_server() -> None:
    async with KubernetesServer() as server:
        got = await fetch(server, "/api/v1/namespaces/nowhere/pods")
    assert got.body == b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}\n'
    assert got.headers["Content-Type"] == "application/json"
    assert got.headers["Cache-Control"] == "no-cache, private"
    assert got.headers["Content-Length"] == str(len(got.body))
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", got.headers["Audit-Id"])
    assert got.headers["X-Kubernetes-Pf-Flowschema-Uid"]
    assert "Server" not in got.headers


async def test_table_equals_that_of_a_real_server() -> None:
    async with ml_server() as server:
        got = await fetch(server, NAMESPACE, headers={"Accept": TABLE}, includeObject="None", limit="2")
    head = (
        b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"6","continue":"%s",'
        b'"remainingItemCount":2},"columnDefinitions":[{"name":"Name","type":"string","format":"name",'
        b'"description":"Name must be unique within a namespace. '
    ) % got.json["metadata"]["continue"].encode()
    tail = (
        b'"priority":1}],"rows":[{"cells":["train-0","1/1","Running","0","31s","10.8.0.10","node-a",'
        b'"\\u003cnone\\u003e","\\u003cnone\\u003e"],"object":null},{"cells":["train-1","1/1","Running","0","31s",'
        b'"10.8.0.11","node-a","\\u003cnone\\u003e","\\u003cnone\\u003e"],"object":null}]}\n'
    )
    assert got.body.startswith(head)
    assert got.body.endswith(tail)
    assert got.headers["Transfer-Encoding"] == "chunked"


async def test_rows_of_finished_pods_have_conditions() -> None:
    async with KubernetesServer([pod("done-0", phase="Succeeded", ip="10.8.1.5", created=CREATED)]) as server:
        got = await fetch(server, headers={"Accept": TABLE}, includeObject="None")
    assert got.json["rows"][0]["conditions"] == [
        {
            "type": "Completed",
            "status": "True",
            "reason": "Succeeded",
            "message": "The pod has completed successfully.",
        }
    ]


async def test_items_of_a_list_have_no_kind_or_version() -> None:
    async with ml_server() as server:
        got = await fetch(server, NAMESPACE)
        one = await fetch(server, f"{NAMESPACE}/train-1")
    items = {item["metadata"]["name"]: item for item in got.json["items"]}
    assert list(items) == ["train-0", "train-1", "train-10", "train-2"]
    assert list(items["train-1"]) == ["metadata", "spec", "status"]
    assert one.json == {"kind": "Pod", "apiVersion": "v1", **items["train-1"]}


async def test_pages_show_one_version_of_the_list() -> None:
    async with ml_server() as server:
        first = await fetch(server, limit="2", labelSelector="job-name=train")
        token = first.json["metadata"]["continue"]
        server.delete("train-10", "ml")
        server.add(pod("train-11", "ml", labels={"job-name": "train"}))
        second = await fetch(server, limit="2", labelSelector="job-name=train", query={"continue": token})
    assert first.names + second.names == ["train-0", "train-1", "train-10", "train-2"]
    assert list(second.json["metadata"]) == ["resourceVersion"]
    assert first.json["metadata"]["resourceVersion"] == second.json["metadata"]["resourceVersion"]


EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You can start a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an inconsistent "
    "list - objects that were created, modified, or deleted between the time the first chunk was returned "
    "and now may show up in the list."
)
REST = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoidHJhaW4tMVx1MDAwMCJ9"
TOO_LARGE = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
NO_TOKEN = "continue key is not valid: invalid character '\\x81' looking for beginning of value"


async def test_response_to_an_expired_token_has_a_token_for_the_rest() -> None:
    async with ml_server() as server:
        token = (await fetch(server, NAMESPACE, limit="2")).json["metadata"]["continue"]
        server.compact()
        got = await fetch(server, NAMESPACE, limit="2", query={"continue": token})
        rest = await fetch(server, NAMESPACE, query={"continue": got.json["metadata"]["continue"]})
    assert got.status == 410
    assert got.body == failure(410, "Expired", EXPIRED, metadata={"continue": REST})
    assert rest.names == ["train-10", "train-2"]


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        (
            {"labelSelector": "a===b"},
            400,
            failure(400, "BadRequest", "unable to parse requirement: found '=', expected: identifier"),
        ),
        (
            {"fieldSelector": "status.nothing=x"},
            400,
            failure(400, "BadRequest", "field label not supported: status.nothing"),
        ),
        ({"continue": "gYGB"}, 400, failure(400, "BadRequest", f"invalid continue token: {NO_TOKEN}")),
        (
            {"resourceVersion": "1", "resourceVersionMatch": "Exact"},
            410,
            failure(410, "Expired", "The resourceVersion for the provided list is too old."),
        ),
        (
            {"resourceVersion": "99999999"},
            504,
            failure(
                504,
                "Timeout",
                "Timeout: Too large resource version: 99999999, current: 7",
                details={"causes": [TOO_LARGE], "retryAfterSeconds": 1},
            ),
        ),
    ],
    ids=["labels", "fields", "token", "too-old", "too-large"],
)
async def test_list_failures_equal_those_of_a_real_server(
    query: dict[str, str], status: int, body: bytes
) -> None:
    async with ml_server() as server:
        server.compact()
        got = await fetch(server, query=query)
    assert (got.status, got.body) == (status, body)
    assert got.headers.get("Retry-After") == ("1" if status == 504 else None)


async def test_missing_pod_is_404() -> None:
    async with KubernetesServer() as server:
        got = await fetch(server, f"{NAMESPACE}/none")
    details = {"name": "none", "kind": "pods"}
    assert (got.status, got.body) == (404, failure(404, "NotFound", 'pods "none" not found', details=details))


async def test_unsupported_representation_is_406() -> None:
    async with KubernetesServer() as server:
        got = await fetch(server, headers={"Accept": "application/xml"})
    message = (
        "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, "
        "application/vnd.kubernetes.protobuf, application/json;stream=watch, "
        "application/vnd.kubernetes.protobuf;stream=watch"
    )
    compact = failure(406, "NotAcceptable", message, details={})
    assert (got.status, got.body) == (406, json.dumps(json.loads(compact), indent=2).encode())


async def test_lists_apply_selectors() -> None:
    async with KubernetesServer(
        [pod("a", labels={"app": "x"}), pod("b", labels={"app": "y"}), pod("c", phase="Pending", node=None)]
    ) as server:
        assert (await fetch(server, labelSelector="app in (x,y),app!=y")).names == ["a"]
        assert (await fetch(server, labelSelector="!app")).names == ["c"]
        assert (await fetch(server, fieldSelector="status.phase=Pending")).names == ["c"]
        assert (await fetch(server, fieldSelector="spec.nodeName=node-a,metadata.name!=a")).names == ["b"]


async def test_interactive_clients_get_indented_json() -> None:
    async with KubernetesServer([pod("a")]) as server:
        plain = await fetch(server)
        indented = await fetch(server, headers={"User-Agent": "curl/8.5.0"})
        one = await fetch(server, "/api/v1/namespaces/default/pods/a", pretty="true")
    assert indented.body.startswith(b'{\n  "kind": "PodList",\n')
    assert indented.json == plain.json
    assert one.body.startswith(b'{\n  "kind": "Pod",\n')


async def test_large_list_is_compressed_if_the_client_accepts_it() -> None:
    async with (
        KubernetesServer([pod(f"a-{n}", size=8192) for n in range(20)]) as server,
        open_session(server) as session,
    ):
        plain = await fetch(server)
        headers = {"Accept-Encoding": "gzip"}
        async with session.get("/api/v1/pods", headers=headers, auto_decompress=False) as response:
            zipped = Response(response.status, response.headers, await response.read())
        small = await fetch(server, "/api/v1/namespaces/none/pods", headers=headers)
    assert (zipped.headers["Content-Encoding"], zipped.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(zipped.body) == plain.body
    assert len(plain.body) > 128 * 1024
    assert "Content-Encoding" not in small.headers


async def test_equal_requests_get_equal_responses_until_the_next_write() -> None:
    async with KubernetesServer([pod("a")]) as server:
        first, second = await fetch(server), await fetch(server)
        server.patch("a", patch={"metadata": {"labels": {"b": "1"}}})
        third = await fetch(server)
    assert first.body == second.body != third.body


async def test_only_metadata_can_be_requested() -> None:
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    async with ml_server() as server:
        got = await fetch(server, NAMESPACE, headers={"Accept": accept})
        whole = await fetch(server, NAMESPACE)
    assert (got.json["kind"], got.json["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert got.json["items"] == [{"metadata": item["metadata"]} for item in whole.json["items"]]


async def test_single_pod_can_be_requested_as_a_table() -> None:
    async with ml_server() as server:
        got = await fetch(server, f"{NAMESPACE}/train-0", headers={"Accept": TABLE})
    assert [row["cells"][0] for row in got.json["rows"]] == ["train-0"]
    assert got.json["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/healthz"])
async def test_health_needs_no_credentials(path: str) -> None:
    async with KubernetesServer(tokens={}) as server:
        got = await fetch(server, path)
    assert (got.status, got.body, got.headers["Content-Type"]) == (200, b"ok", "text/plain; charset=utf-8")


async def test_version_needs_no_credentials_but_rejects_wrong_ones() -> None:
    async with KubernetesServer(tokens={}) as server:
        assert (await fetch(server, "/version")).json["gitVersion"] == "v1.36.2"
        assert (await fetch(server, "/version", headers=bearer("wrong"))).status == 401
        assert (await fetch(server, "/api/v1")).status == 401


async def test_resources_can_be_discovered() -> None:
    async with KubernetesServer() as server:
        assert (await fetch(server, "/api")).json["versions"] == ["v1"]
        assert [each["name"] for each in (await fetch(server, "/api/v1")).json["resources"]] == [
            "nodes",
            "pods",
            "pods/status",
        ]
        assert (
            await fetch(server, "/api/v1/configmaps")
        ).message == "the server could not find the requested resource"
        assert (await fetch(server, "/api/v1/pods", "DELETE")).status == 405
