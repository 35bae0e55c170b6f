"""The loopback Google Cloud over HTTP, as plain clients and google-auth see it."""

import os
from pathlib import Path

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.testing import (
    GoogleServer,
    tpu_node,
)

from .client import fetch

pytestmark = pytest.mark.usefixtures("no_leak")

PLACE = "projects/demo-project/locations/us-central2-b"
ZONE = "/compute/v1/projects/demo-project/zones/us-central2-b"
TOKEN = {"Authorization": "Bearer good"}
FLAVOR = {"Metadata-Flavor": "Google"}


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
    assert not {"symptoms", "healthDescription", "labels"} & set(got.json)


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


async def test_key_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    async with GoogleServer() as server:
        assert os.stat(server.write_service_account_key(tmp_path / "a")).st_mode & 0o777 == 0o600


# The metadata server


async def test_metadata_server_requires_and_returns_its_header() -> None:
    async with GoogleServer() as server:
        path = "/computeMetadata/v1/instance/zone"
        got = await fetch(server, path, headers=FLAVOR)
        assert got.body == b"projects/123456789012/zones/us-central2-b"
        assert got.headers["Metadata-Flavor"] == "Google"
        assert got.headers["Server"] == "Metadata Server for VM"
        assert (await fetch(server, path)).status == 403
        missing = await fetch(server, "/computeMetadata/v1/instance/nothing", headers=FLAVOR)
        assert (missing.status, missing.headers["Metadata-Flavor"]) == (404, "Google")


async def test_with_tls_only_the_metadata_server_speaks_plain_http() -> None:
    async with GoogleServer([tpu_node("a")], tls=True) as server:
        plain = f"http://{server.metadata_host}"
        path = "/computeMetadata/v1/instance/zone"
        assert (await fetch(server, path, headers=FLAVOR, base=plain)).status == 200
        assert (await fetch(server, path, headers=FLAVOR)).status == 404
        assert (await fetch(server, f"/v2/{PLACE}/nodes/a")).status == 200
        assert (await fetch(server, f"/v2/{PLACE}/nodes/a", base=plain)).status == 404


# The server itself


def test_invalid_resources_and_arguments_are_rejected() -> None:
    server = GoogleServer()
    for resource in ({"name": "a"}, tpu_node("projects/p/nodes/n"), tpu_node(f"{PLACE}/queuedResources/q")):
        with pytest.raises(ConfigurationError):
            server.add(resource)
    for call in (server.get, server.delete, server.patch, server.script):
        with pytest.raises(KeyError):
            call("none")
    with pytest.raises(ConfigurationError, match="Create it with tls=True"):
        _ = server.ca_pem
