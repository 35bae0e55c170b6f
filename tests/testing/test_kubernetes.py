"""The loopback API server: what clients may see and write, lists, watches, and the pods that tests build.

`test_recorded.py` compares whole responses with those of a real server, and `tests/conformance` more of them.
"""

import gzip
import json
from datetime import datetime
from typing import Any

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.testing import KubernetesServer, pod, resource_claim, service

from .client import (
    MERGE,
    NAMESPACE,
    NOW,
    TABLE,
    Response,
    bearer,
    fetch,
    open_session,
    open_watch,
    recorded_pods,
)

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CONFIG_MAPS = "/api/v1/namespaces/ml/configmaps"
INDEX = "batch.kubernetes.io/job-completion-index"
NEW_ONLY = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
INITIAL = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


# Users


async def test_only_known_tokens_are_accepted() -> None:
    async with KubernetesServer(tokens={"old": "alice"}) as server:
        assert (await fetch(server, headers=bearer("old"))).status == 200
        for headers in ({}, bearer("wrong"), {"Authorization": "Basic YTpi"}):
            assert (await fetch(server, headers=headers)).status == 401
        server.tokens = {"new": "alice"}
        assert (await fetch(server, headers=bearer("old"))).status == 401
        server.tokens = None
        assert (await fetch(server, headers=bearer("any"))).status == 200


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
        server.resources["alice"] = {"services"}
        assert await status("ml") == 403
        assert (await fetch(server, REVIEWS, "POST", body={})).status == 401


async def test_requests_are_recorded_without_secrets() -> None:
    async with KubernetesServer([pod("a")], tokens={"secret": "alice"}) as server:
        await fetch(server, headers=bearer("secret") | {"Accept": TABLE}, labelSelector="a=b", limit="5")
        await fetch(server, f"{NAMESPACE}/a/status", "PATCH", headers=bearer("secret"), body={})
        await fetch(server, "/api/v1/nothing")
        assert "secret" not in repr(server.requests) + repr(server)
        listed, patched, other = server.requests
        server.forget_requests()
        assert server.requests == ()
    seen = listed.method, listed.path, listed.verb, listed.resource, listed.namespace, listed.name
    assert seen == ("GET", "/api/v1/pods", "list", "pods", None, None)
    assert listed.query == {"labelSelector": "a=b", "limit": "5"}
    assert (listed.scheme, listed.user, listed.accept) == ("Bearer", "alice", TABLE)
    assert listed.user_agent == "tests"
    assert (patched.verb, patched.namespace, patched.name) == ("patch", "ml", "a")
    assert (other.verb, other.resource, other.user) == ("", "", None)


# Lists


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
        invalid = await fetch(server, resourceVersion="x")
    assert (invalid.status, 'parsing "x": invalid syntax' in invalid.message) == (400, True)


async def test_server_describes_what_it_has() -> None:
    async with KubernetesServer(tokens={"a": "alice"}) as server:
        assert (await fetch(server, "/readyz")).body == b"ok"
        assert (await fetch(server, "/version")).json["gitVersion"].startswith("v1.36.")
        assert (await fetch(server, "/version", headers=bearer("wrong"))).status == 401
        assert (await fetch(server, "/api/v1")).status == 401
        resources = (await fetch(server, "/api/v1", headers=bearer("a"))).json["resources"]
        assert [each["name"] for each in resources] == ["pods", "services", "nodes", "configmaps"]
        for method, path, status, message in [
            ("GET", "/api/v1/secrets", 404, "the server could not find the requested resource"),
            ("GET", f"{NAMESPACE}/train-0/log", 404, "the server could not find the requested resource"),
            ("DELETE", "/api/v1/pods", 405, "the server does not allow this method"),
        ]:
            refused = await fetch(server, path, method, headers=bearer("a"))
            assert (refused.status, message in refused.message) == (status, True)
        refused = await fetch(server, "/api/v1/pods", "HEAD", headers=bearer("a"))
        assert (refused.status, refused.body) == (405, b"")


async def test_objects_of_other_kinds_can_be_read() -> None:
    claims = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims"
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "ml"}}
    async with KubernetesServer([resource_claim(name, "ml") for name in "ab"]) as server:
        listed = (await fetch(server, claims, fieldSelector="metadata.name=a")).json
        one = (await fetch(server, f"{claims}/a")).json
        missing = await fetch(server, f"{claims}/c")
        server.delete("a", "ml", kind="ResourceClaim")
        left = (await fetch(server, claims)).names
        server.add(service("train", "ml"))
        found = await fetch(server, "/api/v1/namespaces/ml/services/train")
        server.add_controllers(job)
        controller = await fetch(server, "/apis/batch/v1/namespaces/ml/jobs/train")
    assert one == {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", **listed["items"][0]}
    assert missing.message == 'resourceclaims.resource.k8s.io "c" not found'
    assert (left, found.json["spec"]["clusterIP"], controller.json) == (["b"], "None", job)


# Watches


async def test_watch_sends_the_events_after_a_version() -> None:
    async with KubernetesServer([pod("a")]) as server:
        async with (
            open_watch(server, resourceVersion=str(server.resource_version)) as watch,
            open_watch(server, NEW_ONLY) as other,
        ):
            server.add(pod("b"))
            server.patch("a", patch={"metadata": {"labels": {"x": "1"}}})
            server.compact()  # expires versions of new watches only
            server.delete("b")
            for each in (watch, other):
                assert await each.events(4) == [
                    ("ADDED", "b", "3"),
                    ("MODIFIED", "a", "4"),
                    ("MODIFIED", "b", "6"),
                    ("DELETED", "b", "7"),
                ]
        await server.until(lambda: server.watches == 0)


async def test_watch_from_a_future_version_waits_for_it() -> None:
    async with KubernetesServer([pod("a")], clock=lambda: NOW) as server:
        async with open_watch(server, resourceVersion="3", allowWatchBookmarks="true") as watch:
            server.bookmark()
            server.add(pod("b"))
            server.add(pod("c"))
            server.bookmark()
            assert await watch.events(2) == [("ADDED", "c", "4"), ("BOOKMARK", "", "4")]
        got = await fetch(server, query=INITIAL | {"watch": "true", "resourceVersion": "99"})
    assert (got.status, got.json["reason"]) == (504, "Timeout")


async def test_server_may_not_support_initial_events() -> None:
    async with KubernetesServer() as server:
        server.watch_list = False
        got = await fetch(server, query=INITIAL | {"watch": "true"})
    assert got.status == 422
    assert "sendInitialEvents is forbidden for watch unless the WatchList feature gate" in got.message


async def test_slow_client_gets_an_error_event_when_it_falls_behind() -> None:
    # More than the socket buffers hold, so that the server has to wait for the client.
    big = pod("big", annotations={"blob": "x" * 16_000_000})
    async with KubernetesServer(history=4) as server, open_watch(server, NEW_ONLY) as watch:
        server.add(big)
        start = await watch.response.content.readany()
        server.add(*(pod("small") for _ in range(8)))
        rest = await watch.response.content.read()
        assert [json.loads(line)["type"] for line in (start + rest).splitlines()] == ["ADDED", "ERROR"]
        await server.until(lambda: server.watches == 0)


# Writes of clients


async def test_object_is_written_only_if_its_version_is_current() -> None:
    body = {"metadata": {"name": "state"}, "data": {"round": "1"}}
    path = f"{CONFIG_MAPS}/state"
    async with KubernetesServer() as server:
        created = await fetch(server, CONFIG_MAPS, "POST", body=body)
        again = await fetch(server, CONFIG_MAPS, "POST", body=body)
        version = created.json["metadata"]["resourceVersion"]
        second = {"metadata": {"resourceVersion": version}, "data": {"round": "2"}}
        written, stale = [await fetch(server, path, "PATCH", headers=MERGE, body=second) for _ in range(2)]
        async with open_watch(server, path=CONFIG_MAPS, resourceVersion="1") as watch:
            patch = {"data": {"round": None, "leader": "w-0"}}
            patched = await fetch(server, path, "PATCH", headers=MERGE, body=patch)
            same = await fetch(server, path, "PATCH", headers=MERGE, body=patch)
            deleted = await fetch(server, path, "DELETE")
            seen = [kind for kind, _, _ in await watch.events(4)]
    statuses = [each.status for each in (created, again, written, stale, patched, deleted)]
    assert statuses == [201, 409, 200, 409, 200, 200]
    assert again.message == 'configmaps "state" already exists'
    assert "the object has been modified" in stale.message
    assert (patched.json["data"], same.json) == ({"leader": "w-0"}, patched.json)
    assert patched.json["metadata"]["uid"] == created.json["metadata"]["uid"]
    assert deleted.json["details"] == {
        "name": "state",
        "kind": "configmaps",
        "uid": patched.json["metadata"]["uid"],
    }
    assert seen == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]


async def test_spec_and_status_of_a_pod_are_written_separately() -> None:
    path = f"{NAMESPACE}/live-0"
    spec = {"containers": [{"name": "main"}], "terminationGracePeriodSeconds": 30}
    running = {"phase": "Running"}
    async with KubernetesServer() as server:
        body = {"metadata": {"name": "live-0"}, "spec": spec, "status": running}
        created = await fetch(server, NAMESPACE, "POST", body=body)
        both = {"status": running, "spec": {"priority": 5}}
        status = await fetch(server, f"{path}/status", "PATCH", body=both, headers=MERGE)
        other = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}}
        patched = await fetch(server, path, "PATCH", body=other, headers=MERGE)
    assert (created.json["status"], created.json["spec"]) == ({"phase": "Pending"}, spec)
    assert (status.json["status"], status.json["spec"]) == (running, spec)
    assert (patched.json["metadata"]["labels"], patched.json["status"]) == ({"a": "b"}, running)


@pytest.mark.parametrize(
    ("options", "requested", "periods"),
    [
        ({}, [None, "60", "5", "0"], [30, 30, 5]),
        ({"node": None}, [None], []),
        ({"phase": "Succeeded"}, [None], []),
    ],
)
async def test_pod_remains_for_the_grace_period_of_its_deletion(
    options: dict[str, Any], requested: list[str | None], periods: list[int]
) -> None:
    async with KubernetesServer([pod("live-0", "ml", **options)], clock=lambda: NOW) as server:
        for number, seconds in enumerate(requested):
            query = {} if seconds is None else {"gracePeriodSeconds": seconds}
            await fetch(server, f"{NAMESPACE}/live-0", "DELETE", query=query)
            left = [each["metadata"] for each in server.pods]
            assert [each["deletionGracePeriodSeconds"] for each in left] == periods[number : number + 1]
            for each in left:
                due = datetime.fromisoformat(each["deletionTimestamp"]) - NOW
                assert due.total_seconds() == each["deletionGracePeriodSeconds"]


async def test_finalizer_delays_deletion_until_it_is_removed() -> None:
    path = f"{NAMESPACE}/live-0"
    async with KubernetesServer([pod("live-0", "ml", finalizers=["example.com/hold"])]) as server:
        await fetch(server, path, "DELETE", gracePeriodSeconds="0")
        assert len(server.pods) == 1
        await fetch(server, path, "PATCH", body={"metadata": {"finalizers": None}}, headers=MERGE)
        assert server.pods == []


# Writes of the test


def test_test_can_change_and_remove_pods() -> None:
    server = KubernetesServer([pod("a"), pod("b", finalizers=["example.com/hold"])])
    version = server.resource_version
    patch = {"metadata": {"labels": {"x": "1"}}, "status": {"phase": "Failed"}}
    changed = server.patch("a", patch=patch)
    assert server.resource_version == version + 1
    assert (changed["metadata"]["labels"], changed["status"]["phase"]) == ({"x": "1"}, "Failed")
    server.pod("a")["metadata"]["name"] = "a copy"
    assert server.pod("a") == changed
    uid = server.pod("a")["metadata"]["uid"]
    server.add(pod("a"))
    assert server.pod("a")["metadata"]["uid"] == uid
    with pytest.raises(ConfigurationError, match="not being deleted"):
        server.finish_deletion("b")
    server.delete("b")
    server.finish_deletion("b")
    server.delete("a")
    assert server.pods == []
    with pytest.raises(ConfigurationError, match="no pod default/a"):
        server.pod("a")
    server.add(pod("a"))
    assert server.pod("a")["metadata"]["uid"] != uid
    with pytest.raises(ConfigurationError, match="objects of kind 'Secret'"):
        server.add({"kind": "Secret", "metadata": {"name": "a"}})


# Pods


async def test_row_shows_restarts_sidecars_and_readiness_gates() -> None:
    restarted, initializing = pod("a", containers=("main", "log"), restarts=2), pod("b", restarts=9)
    ended = {"terminated": {"exitCode": 1, "finishedAt": "2026-11-20T15:34:47Z"}}
    restarted["status"]["containerStatuses"][1]["lastState"] = ended
    restarted["spec"]["readinessGates"] = [{"conditionType": "example.com/a"}, {"conditionType": "b"}]
    restarted["status"]["conditions"].append({"type": "example.com/a", "status": "True"})
    initializing["spec"]["initContainers"] = [{"name": "init"}]
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    initializing["status"]["initContainerStatuses"] = [{"name": "init", "state": waiting, "restartCount": 3}]
    async with KubernetesServer([restarted, initializing], clock=lambda: NOW) as server:
        rows = (await fetch(server, headers={"Accept": TABLE})).json["rows"]
    assert [row["cells"][1:4] for row in rows] == [
        ["2/2", "Running", "4 (5m ago)"],
        ["0/1", "Init:CrashLoopBackOff", "3"],
    ]
    assert rows[0]["cells"][8] == "1/2"


def test_built_pods_are_those_of_a_real_server() -> None:
    labels = {"job-name": "a"}
    evicted: dict[str, Any] = {"reason": "Evicted", "message": "The node was low on resource: memory."}
    built = [
        pod("crash-0", "ml", labels=labels, ip="10.8.1.2", waiting="CrashLoopBackOff"),
        pod("creating-0", "ml", labels=labels, phase="Pending", waiting="ContainerCreating"),
        pod("done-0", "ml", labels=labels, ip="10.8.1.5", phase="Succeeded"),
        pod("failed-0", "ml", labels=labels, ip="10.8.1.4", phase="Failed", **evicted),
        pod("leaving-0", "ml", ip="10.8.1.7", deleting=True, finalizers=["example.com/hold"]),
        pod("lost-0", "ml", labels=labels, ip="10.8.1.6", phase="Unknown", reason="NodeLost"),
        pod("notready-0", "ml", labels=labels, ip="10.8.1.3", ready=False),
        pod("train-1", "ml", labels={INDEX: "1"}, ip=("10.8.0.11", "fd00::11")),
    ]
    real = {each["metadata"]["name"]: each for each in recorded_pods()}
    for each in built:
        # As JSON, because the order of the fields is that of the server too.
        assert json.dumps(each["status"]) == json.dumps(real[each["metadata"]["name"]]["status"])
