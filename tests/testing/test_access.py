"""Authentication, authorization and recorded requests of the loopback API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.testing import KubernetesServer, pod, service

from .client import NAMESPACE, NOW, TABLE, basic, bearer, failure, fetch, open_session, trainers


async def test_an_open_server_accepts_every_request() -> None:
    async with KubernetesServer([pod("a")]) as server:
        for headers in ({}, bearer("any"), basic("alice", "any")):
            assert (await fetch(server, headers=headers)).names == ["a"]
        assert [(r.scheme, r.user) for r in server.requests] == [
            ("", "system:anonymous"),
            ("Bearer", "system:anonymous"),
            ("Basic", "alice"),
        ]


async def test_wrong_or_missing_token_is_401() -> None:
    async with KubernetesServer(tokens={"secret": "alice"}) as server:
        assert (await fetch(server, headers=bearer("secret"))).status == 200
        for headers in ({}, bearer("wrong"), basic("alice", "secret"), {"Authorization": "Basic ~"}):
            got = await fetch(server, headers=headers)
            assert (got.status, got.body) == (401, failure(401, "Unauthorized", "Unauthorized"))
            assert "X-Kubernetes-Pf-Flowschema-Uid" not in got.headers


async def test_tokens_can_be_changed_while_the_server_runs() -> None:
    async with KubernetesServer(tokens={"old": "alice"}) as server:
        assert server.tokens is not None
        del server.tokens["old"]
        server.tokens["new"] = "alice"
        assert (await fetch(server, headers=bearer("old"))).status == 401
        assert (await fetch(server, headers=bearer("new"))).status == 200
        server.tokens = None
        assert (await fetch(server)).status == 200


async def test_password_is_checked() -> None:
    async with KubernetesServer(passwords={"alice": "secret"}) as server:
        assert (await fetch(server, headers=basic("alice", "secret"))).status == 200
        assert (await fetch(server, headers=basic("alice", "wrong"))).status == 401
        assert (await fetch(server, headers=bearer("secret"))).status == 401


async def test_anonymous_user_gets_403_if_anonymous_access_is_enabled() -> None:
    async with KubernetesServer(tokens={}, anonymous=True) as server:
        got = await fetch(server)
    message = (
        'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" '
        "at the cluster scope"
    )
    assert (got.status, got.body) == (403, failure(403, "Forbidden", message, details={"kind": "pods"}))
    assert got.headers["X-Content-Type-Options"] == "nosniff"


async def test_user_can_access_only_its_namespaces() -> None:
    server = KubernetesServer(
        trainers(),
        tokens={"a": "admin", "l": "limited", "s": "stranger"},
        allow={"admin": None, "limited": {"ml"}},
    )
    async with server:
        assert len((await fetch(server, headers=bearer("a"))).names) == 4
        assert len((await fetch(server, NAMESPACE, headers=bearer("l"))).names) == 4
        cluster = await fetch(server, headers=bearer("l"))
        other = await fetch(server, "/api/v1/namespaces/default/pods", headers=bearer("l"))
        stranger = await fetch(server, f"{NAMESPACE}/train-0/status", "PATCH", headers=bearer("s"), body={})
        assert server.allow is not None
        server.allow["stranger"] = None
        assert (await fetch(server, headers=bearer("s"))).status == 200
    cannot = 'pods is forbidden: User "limited" cannot list resource "pods" in API group ""'
    assert (cluster.status, cluster.message) == (403, f"{cannot} at the cluster scope")
    assert (other.status, other.message) == (403, f'{cannot} in the namespace "default"')
    assert stranger.message == (
        'pods "train-0" is forbidden: User "stranger" cannot patch resource "pods/status" in API group "" '
        'in the namespace "ml"'
    )
    assert stranger.json["details"] == {"name": "train-0", "kind": "pods"}


async def test_requests_are_recorded_without_secrets() -> None:
    async with KubernetesServer([pod("a")], tokens={"secret": "alice"}) as server:
        await fetch(server, headers=bearer("secret") | {"Accept": TABLE}, labelSelector="a=b", limit="5")
        (record,) = server.requests
        assert (record.method, record.path, record.verb) == ("GET", "/api/v1/pods", "list")
        assert record.query == {"labelSelector": "a=b", "limit": "5"}
        assert (record.scheme, record.user, record.accept, record.user_agent) == (
            "Bearer",
            "alice",
            TABLE,
            "tests",
        )
        assert "secret" not in repr(server.requests) + repr(server) + repr(server._cluster)
        server.forget_requests()
        assert server.requests == ()


async def test_open_connections_are_counted() -> None:
    async with KubernetesServer() as server:
        assert server.connections == 0
        async with open_session(server) as session:
            async with session.get("/version") as response:
                await response.read()
            assert server.connections == 1
        await server.until(lambda: server.connections == 0)


async def test_returned_pods_are_copies() -> None:
    async with KubernetesServer([pod("a")]) as server:
        server.pod("a")["metadata"]["name"] = "b"
        server.pods[0]["metadata"]["name"] = "b"
        assert server.pod("a")["metadata"]["name"] == "a"


async def test_patch_merges_status_and_metadata_in_one_write() -> None:
    async with KubernetesServer([pod("a")]) as server:
        version = server.resource_version
        changed = server.patch("a", patch={"metadata": {"labels": {"x": "1"}}, "status": {"phase": "Failed"}})
        assert server.resource_version == version + 1
        assert (changed["metadata"]["labels"], changed["status"]["phase"]) == ({"x": "1"}, "Failed")


def test_history_must_be_at_least_one() -> None:
    with pytest.raises(ConfigurationError, match="0 is less than one"):
        KubernetesServer(history=0)


REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def review(verb: str, namespace: str = "") -> dict[str, Any]:
    attributes = {"namespace": namespace, "verb": verb, "resource": "pods"}
    return {"spec": {"resourceAttributes": attributes}}


async def test_access_review_is_the_document_of_a_real_server() -> None:
    async with KubernetesServer(clock=lambda: NOW) as server:
        got = await fetch(
            server, REVIEWS, "POST", headers={"User-Agent": "curl/8"}, body=review("list", "ml")
        )
    assert (got.status, got.headers["Content-Type"]) == (201, "application/json")
    fields: dict[str, object] = {".": {}, "f:namespace": {}, "f:resource": {}, "f:verb": {}}
    managed = {
        "manager": "curl",
        "operation": "Update",
        "apiVersion": "authorization.k8s.io/v1",
        "time": "2026-11-20T15:39:52Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:resourceAttributes": fields}},
    }
    document = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {"managedFields": [managed]},
        "spec": {"resourceAttributes": {"namespace": "ml", "verb": "list", "resource": "pods"}},
        "status": {"allowed": True},
    }
    assert got.body == json.dumps(document, indent=2).encode()


async def test_access_review_and_requests_agree_about_verbs_and_namespaces() -> None:
    tokens, allow, verbs = {"secret": "alice"}, {"alice": {"ml"}}, {"alice": {"list"}}
    async with KubernetesServer(tokens=tokens, allow=allow, verbs=verbs) as server:

        async def is_allowed(verb: str, namespace: str) -> bool:
            got = await fetch(server, REVIEWS, "POST", headers=bearer("secret"), body=review(verb, namespace))
            return bool(got.json["status"]["allowed"])

        async def status(namespace: str, query: dict[str, str] | None = None) -> int:
            path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
            return (await fetch(server, path, headers=bearer("secret"), query=query)).status

        for namespace, status_code in (("ml", 200), ("web", 403), ("", 403)):
            assert await is_allowed("list", namespace) is (status_code == 200)
            assert await status(namespace) == status_code
        assert not await is_allowed("watch", "ml")
        assert await status("ml", {"watch": "true"}) == 403
        server.verbs["alice"] = {"list", "watch"}
        assert await is_allowed("watch", "ml")
        assert (await fetch(server, REVIEWS, "POST", body=review("list"))).status == 401


async def test_service_can_be_read() -> None:
    path = "/api/v1/namespaces/ml/services/train"
    async with KubernetesServer(tokens={"secret": "alice"}, allow={"alice": {"ml"}}) as server:
        missing = await fetch(server, path, headers=bearer("secret"))
        assert (missing.status, missing.message) == (404, 'services "train" not found')
        server.add(service("train", "ml"))
        found = await fetch(server, path, headers=bearer("secret"))
        assert (found.status, found.json["spec"]["clusterIP"]) == (200, "None")
        denied = await fetch(server, path.replace("/ml/", "/web/"), headers=bearer("secret"))
    assert (denied.status, denied.json["details"]) == (403, {"name": "train", "kind": "services"})
