"""The loopback API server over HTTP, beside what a Kubernetes 1.36 API server answered."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from aioresolve.testing import KubernetesServer, pod

from .client import CREATED, NAMESPACE, TABLE, Got, ask, bearer, failure, in_ml, opened


async def test_an_empty_list_has_the_bytes_of_a_real_one() -> None:
    async with KubernetesServer() as server:
        got = await ask(server, "/api/v1/namespaces/nowhere/pods")
    assert got.body == b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}\n'
    assert got.headers["Content-Type"] == "application/json"
    assert got.headers["Cache-Control"] == "no-cache, private"
    assert got.headers["Content-Length"] == str(len(got.body))
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", got.headers["Audit-Id"])
    assert got.headers["X-Kubernetes-Pf-Flowschema-Uid"]
    assert "Server" not in got.headers


async def test_a_table_has_the_bytes_of_a_real_one() -> None:
    async with in_ml() as server:
        got = await ask(server, NAMESPACE, headers={"Accept": TABLE}, includeObject="None", limit="2")
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
        got = await ask(server, headers={"Accept": TABLE}, includeObject="None")
    assert got.json["rows"][0]["conditions"] == [
        {
            "type": "Completed",
            "status": "True",
            "reason": "Succeeded",
            "message": "The pod has completed successfully.",
        }
    ]


async def test_items_of_a_list_have_neither_kind_nor_version() -> None:
    async with in_ml() as server:
        got = await ask(server, NAMESPACE)
        one = await ask(server, f"{NAMESPACE}/train-1")
    items = {item["metadata"]["name"]: item for item in got.json["items"]}
    assert list(items) == ["train-0", "train-1", "train-10", "train-2"]
    assert list(items["train-1"]) == ["metadata", "spec", "status"]
    assert one.json == {"kind": "Pod", "apiVersion": "v1", **items["train-1"]}


async def test_pages_follow_one_another() -> None:
    async with in_ml() as server:
        first = await ask(server, limit="2", labelSelector="job-name=train")
        token = first.json["metadata"]["continue"]
        server.delete("train-10", "ml")
        server.add(pod("train-11", "ml", labels={"job-name": "train"}))
        second = await ask(server, limit="2", labelSelector="job-name=train", query={"continue": token})
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


async def test_an_expired_token_is_answered_with_one_for_the_rest() -> None:
    async with in_ml() as server:
        token = (await ask(server, NAMESPACE, limit="2")).json["metadata"]["continue"]
        server.compact()
        got = await ask(server, NAMESPACE, limit="2", query={"continue": token})
        rest = await ask(server, NAMESPACE, query={"continue": got.json["metadata"]["continue"]})
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
async def test_a_list_fails_with_the_bytes_of_a_real_one(
    query: dict[str, str], status: int, body: bytes
) -> None:
    async with in_ml() as server:
        server.compact()
        got = await ask(server, query=query)
    assert (got.status, got.body) == (status, body)
    assert got.headers.get("Retry-After") == ("1" if status == 504 else None)


async def test_a_missing_pod_is_404() -> None:
    async with KubernetesServer() as server:
        got = await ask(server, f"{NAMESPACE}/none")
    details = {"name": "none", "kind": "pods"}
    assert (got.status, got.body) == (404, failure(404, "NotFound", 'pods "none" not found', details=details))


async def test_a_representation_that_cannot_be_made_is_406() -> None:
    async with KubernetesServer() as server:
        got = await ask(server, headers={"Accept": "application/xml"})
    message = (
        "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, "
        "application/vnd.kubernetes.protobuf, application/json;stream=watch, "
        "application/vnd.kubernetes.protobuf;stream=watch"
    )
    compact = failure(406, "NotAcceptable", message, details={})
    assert (got.status, got.body) == (406, json.dumps(json.loads(compact), indent=2).encode())


async def test_selectors_are_obeyed() -> None:
    async with KubernetesServer(
        [pod("a", labels={"app": "x"}), pod("b", labels={"app": "y"}), pod("c", phase="Pending", node=None)]
    ) as server:
        assert (await ask(server, labelSelector="app in (x,y),app!=y")).names == ["a"]
        assert (await ask(server, labelSelector="!app")).names == ["c"]
        assert (await ask(server, fieldSelector="status.phase=Pending")).names == ["c"]
        assert (await ask(server, fieldSelector="spec.nodeName=node-a,metadata.name!=a")).names == ["b"]


async def test_people_get_indented_json() -> None:
    async with KubernetesServer([pod("a")]) as server:
        plain = await ask(server)
        indented = await ask(server, headers={"User-Agent": "curl/8.5.0"})
        one = await ask(server, "/api/v1/namespaces/default/pods/a", pretty="true")
    assert indented.body.startswith(b'{\n  "kind": "PodList",\n')
    assert indented.json == plain.json
    assert one.body.startswith(b'{\n  "kind": "Pod",\n')


async def test_a_big_list_is_compressed_for_who_asks() -> None:
    async with (
        KubernetesServer([pod(f"a-{n}", size=8192) for n in range(20)]) as server,
        opened(server) as session,
    ):
        plain = await ask(server)
        asked = {"Accept-Encoding": "gzip"}
        async with session.get("/api/v1/pods", headers=asked, auto_decompress=False) as response:
            zipped = Got(response.status, response.headers, await response.read())
        small = await ask(server, "/api/v1/namespaces/none/pods", headers=asked)
    assert (zipped.headers["Content-Encoding"], zipped.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(zipped.body) == plain.body
    assert len(plain.body) > 128 * 1024
    assert "Content-Encoding" not in small.headers


async def test_equal_questions_have_equal_answers_until_something_is_written() -> None:
    async with KubernetesServer([pod("a")]) as server:
        first, second = await ask(server), await ask(server)
        server.patch("a", patch={"metadata": {"labels": {"b": "1"}}})
        third = await ask(server)
    assert first.body == second.body != third.body


async def test_only_metadata_can_be_asked_for() -> None:
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    async with in_ml() as server:
        got = await ask(server, NAMESPACE, headers={"Accept": accept})
        whole = await ask(server, NAMESPACE)
    assert (got.json["kind"], got.json["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert got.json["items"] == [{"metadata": item["metadata"]} for item in whole.json["items"]]


async def test_one_pod_can_be_a_table() -> None:
    async with in_ml() as server:
        got = await ask(server, f"{NAMESPACE}/train-0", headers={"Accept": TABLE})
    assert [row["cells"][0] for row in got.json["rows"]] == ["train-0"]
    assert got.json["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/healthz"])
async def test_health_is_told_to_everybody(path: str) -> None:
    async with KubernetesServer(tokens={}) as server:
        got = await ask(server, path)
    assert (got.status, got.body, got.headers["Content-Type"]) == (200, b"ok", "text/plain; charset=utf-8")


async def test_the_version_is_told_to_everybody_but_to_a_wrong_token() -> None:
    async with KubernetesServer(tokens={}) as server:
        assert (await ask(server, "/version")).json["gitVersion"] == "v1.36.2"
        assert (await ask(server, "/version", headers=bearer("wrong"))).status == 401
        assert (await ask(server, "/api/v1")).status == 401


async def test_its_resources_can_be_discovered() -> None:
    async with KubernetesServer() as server:
        assert (await ask(server, "/api")).json["versions"] == ["v1"]
        assert [each["name"] for each in (await ask(server, "/api/v1")).json["resources"]] == [
            "pods",
            "pods/status",
        ]
        assert (
            await ask(server, "/api/v1/nodes")
        ).message == "the server could not find the requested resource"
        assert (await ask(server, "/api/v1/pods", "DELETE")).status == 405
