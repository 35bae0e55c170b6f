"""Users of the loopback API server, their permissions, and the requests that the server records."""

from __future__ import annotations

from aioresolve.testing import KubernetesServer, pod, service

from .client import NAMESPACE, TABLE, bearer, fetch, trainers

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PODS, SLICES, CLAIMS = "pods", "endpointslices.discovery.k8s.io", "resourceclaims.resource.k8s.io"


async def test_only_known_tokens_are_accepted() -> None:
    async with KubernetesServer(tokens={"old": "alice"}) as server:
        assert (await fetch(server, headers=bearer("old"))).status == 200
        for headers in ({}, bearer("wrong"), {"Authorization": "Basic YTpi"}):
            assert (await fetch(server, headers=headers)).status == 401
        server.tokens = {"new": "alice"}
        assert (await fetch(server, headers=bearer("old"))).status == 401
        server.tokens = None
        assert (await fetch(server, headers=bearer("any"))).status == 200


async def test_user_can_access_only_its_namespaces() -> None:
    server = KubernetesServer(
        trainers(), tokens={"a": "admin", "l": "limited", "s": "stranger"}, allow={"admin": None}
    )
    async with server:
        server.allow = {"admin": None, "limited": {"ml"}}
        assert len((await fetch(server, headers=bearer("a"))).names) == 4
        assert len((await fetch(server, NAMESPACE, headers=bearer("l"))).names) == 4
        assert (await fetch(server, headers=bearer("l"))).status == 403
        stranger = await fetch(server, f"{NAMESPACE}/train-0/status", "PATCH", headers=bearer("s"), body={})
        server.allow = {"stranger": None}
        assert (await fetch(server, headers=bearer("s"))).status == 200
    assert stranger.message == (
        'pods "train-0" is forbidden: User "stranger" cannot patch resource "pods/status" in API group "" '
        'in the namespace "ml"'
    )
    assert stranger.json["details"] == {"name": "train-0", "kind": "pods"}


async def test_access_review_and_requests_agree_about_verbs_and_namespaces() -> None:
    tokens, allow, verbs = {"secret": "alice"}, {"alice": {"ml"}}, {"alice": {"list"}}
    async with KubernetesServer(tokens=tokens, allow=allow, verbs=verbs) as server:

        async def is_allowed(verb: str, namespace: str) -> bool:
            attributes = {"namespace": namespace, "verb": verb, "resource": "pods"}
            body = {"spec": {"resourceAttributes": attributes}}
            got = await fetch(server, REVIEWS, "POST", headers=bearer("secret"), body=body)
            return bool(got.json["status"]["allowed"])

        async def status(namespace: str, query: dict[str, str] | None = None) -> int:
            path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
            return (await fetch(server, path, headers=bearer("secret"), query=query)).status

        for namespace, expected in (("ml", 200), ("web", 403), ("", 403)):
            assert await is_allowed("list", namespace) is (expected == 200)
            assert await status(namespace) == expected
        assert not await is_allowed("watch", "ml")
        assert await status("ml", {"watch": "true"}) == 403
        server.verbs["alice"] = {"list", "watch"}
        assert await is_allowed("watch", "ml")
        assert (await fetch(server, REVIEWS, "POST", body={})).status == 401


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


async def test_requests_are_recorded_without_secrets() -> None:
    async with KubernetesServer([pod("a")], tokens={"secret": "alice"}) as server:
        await fetch(server, headers=bearer("secret") | {"Accept": TABLE}, labelSelector="a=b", limit="5")
        await fetch(server, f"{NAMESPACE}/a/status", "PATCH", headers=bearer("secret"), body={})
        await fetch(server, "/api/v1/configmaps")
        assert "secret" not in repr(server.requests) + repr(server)
        listed, patched, other = server.requests
        server.forget_requests()
        assert server.requests == ()
    assert (listed.method, listed.path, listed.verb, listed.resource) == ("GET", "/api/v1/pods", "list", PODS)
    assert listed.query == {"labelSelector": "a=b", "limit": "5"}
    assert (listed.namespace, listed.name) == (None, None)
    assert (listed.scheme, listed.user, listed.accept) == ("Bearer", "alice", TABLE)
    assert listed.user_agent == "tests"
    assert (patched.verb, patched.namespace, patched.name) == ("patch", "ml", "a")
    assert (other.verb, other.resource, other.user) == ("", "", None)
