"""The loopback Google Cloud over HTTP, as plain clients and google-auth see it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.testing import (
    Answer,
    GoogleServer,
    Reset,
    instance,
    queued_resource,
    tpu_node,
)

from .client import Response, trusting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("no_leak")

PLACE = "projects/demo-project/locations/us-central2-b"
ZONE = "/compute/v1/projects/demo-project/zones/us-central2-b"
TOKEN = {"Authorization": "Bearer good"}
FLAVOR = {"Metadata-Flavor": "Google"}


@asynccontextmanager
async def open_session(server: GoogleServer) -> AsyncIterator[aiohttp.ClientSession]:
    secure = server.url.startswith("https:")
    context: Any = trusting(server) if secure else True
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield session


async def fetch(
    server: GoogleServer,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    base: str | None = None,
    query: Mapping[str, str] | None = None,
    **more: str,
) -> Response:
    """Send a GET, or a POST if there is a form, and return the response; `more` is added to the query."""
    async with open_session(server) as session:
        method = "GET" if form is None else "POST"
        url = (base or server.url) + path
        async with session.request(
            method, url, headers=headers, data=form, params={**(query or {}), **more}, allow_redirects=False
        ) as response:
            return Response(response.status, response.headers, await response.read())


def names(got: Response, collection: str = "nodes") -> list[str]:
    return [each["name"].rpartition("/")[2] for each in got.json.get(collection, ())]


# The Cloud TPU API


async def test_node_has_the_format_of_v2() -> None:
    async with GoogleServer([tpu_node("a", workers=2, ips=["10.0.0.2", "10.0.0.3"])]) as server:
        got = await fetch(server, f"/v2/{PLACE}/nodes/a")
    assert got.headers["Content-Type"] == "application/json; charset=UTF-8"
    assert "Server" not in got.headers
    assert got.json["name"] == f"{PLACE}/nodes/a"
    assert got.json["networkEndpoints"] == [
        {"ipAddress": "10.0.0.2", "port": 8470, "accessConfig": {}},
        {"ipAddress": "10.0.0.3", "port": 8470, "accessConfig": {}},
    ]
    assert (got.json["state"], got.json["health"], got.json["apiVersion"]) == ("READY", "HEALTHY", "V2")
    assert not {"symptoms", "healthDescription", "queuedResource", "multisliceNode", "labels"} & set(got.json)


async def test_script_advances_with_each_request_for_the_resource() -> None:
    async with GoogleServer([tpu_node("a"), tpu_node("b")]) as server:
        server.script("a", "CREATING", {"state": "READY", "health": None})
        assert (await fetch(server, f"/v2/{PLACE}/nodes/b")).json["state"] == "READY"
        assert (await fetch(server, f"/v2/{PLACE}/nodes/a")).json["state"] == "CREATING"
        [a, _] = (await fetch(server, f"/v2/{PLACE}/nodes")).json["nodes"]
        assert (a["state"], "health" in a) == ("READY", False)
        assert server.get("a")["state"] == "READY"
        server.patch("a", state="STOPPED", health="TIMEOUT")
        stopped = (await fetch(server, f"/v2/{PLACE}/nodes/a")).json
        assert (stopped["state"], stopped["health"]) == ("STOPPED", "TIMEOUT")


async def test_queued_resource_has_the_specs_of_its_nodes() -> None:
    failed = queued_resource("b", state="FAILED", error="no capacity")
    async with GoogleServer([queued_resource("a", nodes=2, node_id="s"), failed]) as server:
        server.script("a", "ACCEPTED", "ACTIVE")
        got = (await fetch(server, f"/v2/{PLACE}/queuedResources/a")).json
        assert got["state"] == {"state": "ACCEPTED", "stateInitiator": "USER"}
        [spec] = got["tpu"]["nodeSpec"]
        assert spec["parent"] == PLACE
        assert spec["multisliceParams"] == {"nodeCount": 2, "nodeIdPrefix": "s"}
        listed = await fetch(server, f"/v2/{PLACE}/queuedResources")
        assert names(listed, "queuedResources") == ["a", "b"]
        assert listed.json["queuedResources"][1]["state"]["failedData"]["error"]["message"] == "no capacity"


async def test_failure_is_a_status_with_an_error_info() -> None:
    async with GoogleServer() as server:
        for path, status, reason in (
            (f"/v2/{PLACE}/nodes/none", 404, "RESOURCE_NOT_FOUND"),
            ("/v2/projects/unknown/locations/z/nodes/a", 403, "IAM_PERMISSION_DENIED"),
        ):
            got = await fetch(server, path)
            [detail] = got.error["details"]
            assert (got.status, got.error["code"], detail["reason"]) == (status, status, reason)
            assert detail["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
        for path in ("/v2/projects/p", "/v3/x", "/nothing", f"/v2/{PLACE}/nodes/a/b"):
            got = await fetch(server, path)
            assert (got.status, got.headers["Content-Type"]) == (404, "text/html; charset=UTF-8")


# Authentication


async def test_only_known_tokens_are_accepted_until_they_expire() -> None:
    async with GoogleServer([tpu_node("a")], tokens={"good": "user:alice@example.com"}) as server:
        path = f"/v2/{PLACE}/nodes/a"
        assert (await fetch(server, path, headers=TOKEN)).status == 200
        missing = await fetch(server, path)
        wrong = await fetch(server, path, headers={"Authorization": "Bearer wrong"})
        assert [missing.status, wrong.status] == [401, 401]
        assert missing.error["details"][0]["reason"] == "CREDENTIALS_MISSING"
        assert 'error="invalid_token"' in wrong.headers["WWW-Authenticate"]
        assert (await fetch(server, f"{ZONE}/instances")).status == 401
        assert [request.user for request in server.requests[:3]] == ["user:alice@example.com", None, None]
        token_path = "/computeMetadata/v1/instance/service-accounts/default/token"
        for lifetime, status in ((server.token_lifetime, 200), (0.0, 401)):
            server.token_lifetime = lifetime
            token = (await fetch(server, token_path, headers=FLAVOR)).json["access_token"]
            headers = {"Authorization": f"Bearer {token}"}
            assert (await fetch(server, path, headers=headers)).status == status
        server.tokens = None
        assert (await fetch(server, path)).status == 200
        assert "good" not in "".join(map(repr, server.requests))


async def test_credential_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    async with GoogleServer() as server:
        for file in (
            server.write_service_account_key(tmp_path / "a"),
            server.write_authorized_user(tmp_path / "b"),
            server.write_external_account(tmp_path / "c", impersonate="a@b"),
        ):
            assert os.stat(file).st_mode & 0o777 == 0o600
        assert os.stat(tmp_path / "c.token").st_mode & 0o777 == 0o600


# The metadata server


async def test_metadata_server_requires_and_returns_its_header() -> None:
    async with GoogleServer() as server:
        path = "/computeMetadata/v1/instance/zone"
        got = await fetch(server, path, headers=FLAVOR)
        assert got.body == b"projects/123456789012/zones/us-central2-b"
        assert got.headers["Metadata-Flavor"] == "Google"
        assert got.headers["Server"] == "Metadata Server for VM"
        assert (await fetch(server, path)).status == 403
        assert (await fetch(server, path, headers={**FLAVOR, "X-Forwarded-For": "10.0.0.1"})).status == 403
        missing = await fetch(server, "/computeMetadata/v1/instance/nothing", headers=FLAVOR)
        assert (missing.status, missing.headers["Metadata-Flavor"]) == (404, "Google")


VALUE = "/computeMetadata/v1/instance/attributes/epoch"
WAITING = {"wait_for_change": "true", "timeout_sec": "30"}


@asynccontextmanager
async def waiting_request(
    server: GoogleServer, path: str, **query: str
) -> AsyncIterator[asyncio.Task[Response]]:
    """Send a request that waits, and yield its task when the server has received it."""
    before = len(server.requests)
    async with asyncio.TaskGroup() as group:
        request = group.create_task(fetch(server, path, headers=FLAVOR, query=WAITING | query))
        await server.until(lambda: len(server.requests) == before + 1)
        yield request


async def test_metadata_request_waits_for_a_change() -> None:
    async with GoogleServer(metadata={"instance/attributes/epoch": "1"}) as server:
        known = (await fetch(server, VALUE, headers=FLAVOR)).headers["ETag"]
        async with waiting_request(server, VALUE) as response:
            server.metadata["instance/attributes/epoch"] = "2"
            assert (await response).body == b"2"
        behind = await fetch(server, VALUE, headers=FLAVOR, query=WAITING, last_etag=known)
        assert behind.body == b"2"
        async with waiting_request(server, VALUE, last_etag=behind.headers["ETag"]) as response:
            server.metadata["instance/attributes/epoch"] = "3"
            assert (await response).body == b"3"


SCRIPT = """
import google.auth, google.auth.transport.requests
credentials, project = google.auth.default()
credentials.refresh(google.auth.transport.requests.Request())
print(type(credentials).__module__, project, credentials.service_account_email, credentials.token[:5])
"""


async def test_google_auth_finds_vm_credentials_with_the_environ(tmp_path: Path) -> None:
    async with GoogleServer(tls=True) as server:
        environ = {**os.environ, **server.environ(), "CLOUDSDK_CONFIG": str(tmp_path), "no_proxy": "*"}
        environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        result = await anyio.run_process(
            [sys.executable, "-c", SCRIPT], env=environ, stderr=subprocess.STDOUT
        )
        assert result.stdout.decode().split() == [
            "google.auth.compute_engine.credentials",
            "demo-project",
            server.email,
            "ya29.",
        ]
        assert {request.service for request in server.requests} == {"metadata"}


async def test_environ_with_a_directory_has_a_key_and_the_ca_certificate(tmp_path: Path) -> None:
    async with GoogleServer(tls=True) as server:
        environ = server.environ(tmp_path / "new")
        key = json.loads((tmp_path / "new" / "key.json").read_text())
        assert environ["GOOGLE_APPLICATION_CREDENTIALS"] == str(tmp_path / "new" / "key.json")
        assert key["token_uri"] == f"{server.url}/token"
        assert (tmp_path / "new" / "ca.pem").read_text() == server.ca_pem
        assert environ["SSL_CERT_FILE"] == str(tmp_path / "new" / "ca.pem")
        assert environ["GCE_METADATA_HOST"] == server.metadata_host
        assert environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] == f"{server.url}/"


async def test_with_tls_only_the_metadata_server_speaks_plain_http() -> None:
    async with GoogleServer([tpu_node("a")], tls=True) as server:
        plain = f"http://{server.metadata_host}"
        path = "/computeMetadata/v1/instance/zone"
        assert (await fetch(server, path, headers=FLAVOR, base=plain)).status == 200
        assert (await fetch(server, path, headers=FLAVOR)).status == 404
        assert (await fetch(server, f"/v2/{PLACE}/nodes/a")).status == 200
        assert (await fetch(server, f"/v2/{PLACE}/nodes/a", base=plain)).status == 404


# Compute Engine


async def test_instances_can_be_read_and_listed() -> None:
    vms = [instance("vm-0", ip="10.0.0.2", external_ip="34.1.2.3", ipv6="fd20::1"), instance("vm-1")]
    async with GoogleServer(vms) as server:
        got = (await fetch(server, f"{ZONE}/instances/vm-0")).json
        [interface] = got["networkInterfaces"]
        assert (interface["networkIP"], interface["ipv6Address"]) == ("10.0.0.2", "fd20::1")
        assert interface["accessConfigs"][0]["natIP"] == "34.1.2.3"
        assert got["selfLink"].endswith("/zones/us-central2-b/instances/vm-0")
        first = await fetch(server, f"{ZONE}/instances", maxResults="1")
        rest = await fetch(server, f"{ZONE}/instances", pageToken=first.json["nextPageToken"])
        assert names(first, "items") + names(rest, "items") == ["vm-0", "vm-1"]


async def test_instance_group_lists_links_of_its_instances() -> None:
    async with GoogleServer([instance("vm-0"), instance("vm-1", status="STOPPING")], page_size=1) as server:
        server.instance_groups["g"] = ["vm-1", "vm-0"]
        path = f"{ZONE}/instanceGroups/g/listInstances"
        first = (await fetch(server, path, form={})).json
        rest = (await fetch(server, path, form={}, pageToken=first["nextPageToken"])).json
        items = first["items"] + rest["items"]
        assert [each["instance"].rpartition("/")[2] for each in items] == ["vm-0", "vm-1"]
        assert [each["status"] for each in items] == ["RUNNING", "STOPPING"]
        managed = f"{ZONE}/instanceGroupManagers/g/listManagedInstances"
        [one] = (await fetch(server, managed, form={})).json["managedInstances"]
        assert (one["instanceStatus"], one["currentAction"]) == ("RUNNING", "NONE")
        server.script("vm-0", "STAGING")
        assert (await fetch(server, path, form={})).json["items"][0]["status"] == "STAGING"
        server.instance_groups["g"] = []
        for each in (path, managed):
            assert not {"items", "managedInstances"} & set((await fetch(server, each, form={})).json)


async def test_instances_are_filtered_by_regular_expressions_of_whole_values() -> None:
    async with GoogleServer([instance("vm-1"), instance("vm-10"), instance("x")], page_size=1) as server:
        path = f"{ZONE}/instances"
        first = await fetch(server, path, filter='name eq "(vm-10|vm-1)"')
        rest = await fetch(
            server, path, filter='name eq "(vm-10|vm-1)"', pageToken=first.json["nextPageToken"]
        )
        assert names(first, "items") + names(rest, "items") == ["vm-1", "vm-10"]
        assert "nextPageToken" not in rest.json
        assert names(await fetch(server, path, filter="name ne vm.*"), "items") == ["x"]
        for invalid in ("name", 'name = "x"', 'name eq "("'):
            error = (await fetch(server, path, filter=invalid)).error
            assert (error["code"], error["errors"][0]["reason"]) == (400, "invalid")


async def test_partial_response_has_the_requested_fields() -> None:
    async with GoogleServer([instance("vm", ip="10.0.0.1", external_ip="34.1.2.3")]) as server:
        fields = "items(name,networkInterfaces(networkIP,accessConfigs/natIP)),nextPageToken"
        got = (await fetch(server, f"{ZONE}/instances", fields=fields)).json
        interface = {"networkIP": "10.0.0.1", "accessConfigs": [{"natIP": "34.1.2.3"}]}
        assert got == {"items": [{"name": "vm", "networkInterfaces": [interface]}]}
        for invalid in ("items(", "items,", "a//b"):
            assert (await fetch(server, f"{ZONE}/instances", fields=invalid)).status == 400


# The server itself


async def test_faults_have_the_bodies_of_google() -> None:
    async with GoogleServer([tpu_node("a")]) as server:
        path = f"/v2/{PLACE}/nodes/a"
        server.inject(Answer(503), match=lambda request: request.service == "tpu", times=2)
        assert (await fetch(server, "/computeMetadata/v1/instance/id", headers=FLAVOR)).status == 200
        assert [(await fetch(server, path)).status for _ in range(3)] == [503, 503, 200]
        server.inject(Answer(429))
        assert (await fetch(server, path)).error["details"][0]["reason"] == "RATE_LIMIT_EXCEEDED"
        server.inject(Answer(200, b"raw", headers={"X-Own": "1"}))
        got = await fetch(server, path)
        assert (got.body, got.headers["X-Own"]) == (b"raw", "1")
        server.inject(Reset(after=3))
        with pytest.raises(aiohttp.ClientError):
            await fetch(server, path)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_restart_drops_connections_and_keeps_ports_and_data(tls: bool) -> None:
    async with GoogleServer([tpu_node("a")], tls=tls) as server, open_session(server) as session:
        url, metadata_host = f"{server.url}/v2/{PLACE}/nodes/a", server.metadata_host
        async with session.get(url) as response:
            await response.read()
        assert server.connections == 1
        async with server.down():
            await server.until(lambda: server.connections == 0)
            for base in (server.url, f"http://{metadata_host}"):
                with pytest.raises(aiohttp.ClientConnectorError):
                    await fetch(server, "/", base=base)
        await server.restart()
        assert (server.metadata_host, f"{server.url}/v2/{PLACE}/nodes/a") == (metadata_host, url)
        async with session.get(url) as response:
            assert (await response.json())["state"] == "READY"
        got = await fetch(server, "/", headers=FLAVOR, base=f"http://{metadata_host}")
        assert got.status == 200


def test_invalid_resources_and_arguments_are_rejected() -> None:
    server = GoogleServer()
    for resource in ({"name": "a"}, tpu_node("projects/p/nodes/n"), tpu_node(f"{PLACE}/queuedResources/q")):
        with pytest.raises(ConfigurationError):
            server.add(resource)
    for call in (server.get, server.delete, server.patch, server.script):
        with pytest.raises(KeyError):
            call("none")
    with pytest.raises(ConfigurationError, match="0 is less than one"):
        GoogleServer(page_size=0)
    with pytest.raises(ConfigurationError, match="Create it with tls=True"):
        _ = server.ca_pem
