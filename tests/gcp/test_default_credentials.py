"""Application default credentials, found in the same places as by Google's client libraries."""

import json
import sys
from pathlib import Path

import google.oauth2.credentials
import pytest

from aioresolve.errors import CredentialsError
from aioresolve.testing import Answer, GoogleServer

from .loopback import (
    ROBOT,
    TOKEN,
    all_text,
    error_from,
    members,
    new_resolver,
    request_my_tpu,
    services,
    tls_server,
)

pytestmark = pytest.mark.usefixtures("no_leak")

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


async def test_a_service_account_signs_its_token_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_server() as server:
        monkeypatch.setenv(VARIABLE, str(server.write_service_account_key(tmp_path / "key.json")))
        assert (await request_my_tpu()).state == "READY"
        assert services(server) == ["oauth2", "tpu"]
        assert members(server) == [f"serviceAccount:{ROBOT}"]


async def test_an_authorized_user_is_found_where_gcloud_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_server() as server:
        # google-auth uses this server for every authorized user and ignores the URL in the file.
        monkeypatch.setattr(google.oauth2.credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{server.url}/token")
        folder = tmp_path / ".config" / "gcloud"
        folder.mkdir(parents=True)
        user = {"type": "authorized_user", "client_id": "1", "client_secret": "2", "refresh_token": "3"}
        (folder / "application_default_credentials.json").write_text(json.dumps(user))
        assert (await request_my_tpu()).state == "READY"
        assert members(server) == ["user:alice@example.com"]
        moved = tmp_path / "elsewhere"
        folder.rename(moved)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(moved))
        assert (await request_my_tpu()).state == "READY"


def federated(folder: Path, server: GoogleServer) -> Path:
    """Write the configuration of a federated workload, whose token server is at `/sts`; return its file."""
    (folder / "subject").write_text("subject")
    kind = "urn:ietf:params:oauth:token-type:"
    configuration = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/a/providers/b",
        "subject_token_type": f"{kind}jwt",
        "token_url": f"{server.url}/sts",
        "credential_source": {"file": str(folder / "subject")},
        "client_id": "pool",
        "client_secret": "secret",
    }
    (folder / "pool.json").write_text(json.dumps(configuration))
    issued = {"access_token": TOKEN, "issued_token_type": f"{kind}access_token", "token_type": "Bearer"}
    server.inject(
        Answer(200, json.dumps(issued | {"expires_in": 3600}).encode()),
        match=lambda request: request.path == "/sts",
    )
    return folder / "pool.json"


async def test_a_federated_workload_exchanges_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_server() as server:
        monkeypatch.setenv(VARIABLE, str(federated(tmp_path, server)))
        assert (await request_my_tpu()).state == "READY"
        assert (server.requests[0].path, server.requests[0].scheme) == ("/sts", "Basic")
        assert members(server) == ["user:alice@example.com"]


async def test_a_vm_uses_its_metadata_server_and_keeps_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tls_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        async with new_resolver() as opened:
            for _ in range(3):
                assert await opened.nodes()
        assert services(server) == ["metadata", "tpu", "tpu", "tpu"]
        assert members(server)[0] == f"serviceAccount:{ROBOT}"
        assert server.requests[0].query == {"scopes": "https://www.googleapis.com/auth/cloud-platform"}
        server.inject(Answer(403), match=lambda request: request.service == "tpu")
        error = await error_from(request_my_tpu())
    assert "the metadata server's default service account lacks the permission tpu.nodes.get" in str(error)


async def test_a_vm_needs_no_package_but_google_auth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The credentials of google-auth for a VM import `requests`, which it does not depend on.
    monkeypatch.setitem(sys.modules, "requests", None)
    for name in [name for name in sys.modules if name.startswith("google.auth.transport.")]:
        monkeypatch.delitem(sys.modules, name)
    async with tls_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        assert (await request_my_tpu()).state == "READY"
        monkeypatch.setenv(VARIABLE, str(federated(tmp_path, server)))
        assert (await request_my_tpu()).state == "READY"


async def test_a_vm_without_a_service_account_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tls_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        del server.metadata["instance/service-accounts/default/email"]
        error = await error_from(request_my_tpu())
        assert isinstance(error, CredentialsError)
        assert "the metadata server reports that this machine has no service account" in str(error)
        server.inject(Answer(503, headers={"Metadata-Flavor": "Google", "Retry-After": "3600"}))
        assert (await error_from(request_my_tpu())).retryable


async def test_a_malformed_token_of_the_metadata_server_is_reported_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tls_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        body = b'{"access_token": ["MARKER"], "expires_in": 3599}'
        server.inject(Answer(200, body, headers={"Metadata-Flavor": "Google"}))
        error = await error_from(request_my_tpu())
    assert isinstance(error, CredentialsError)
    assert "the metadata server returned an invalid access token" in str(error)
    assert "MARKER" not in all_text(error)


async def test_pod_without_a_binding_of_workload_identity_has_another_hint_than_to_log_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tls_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        server.inject(Answer(403, b"IAM returned 403", headers={"Metadata-Flavor": "Google"}))
        error = await error_from(request_my_tpu())
    assert isinstance(error, CredentialsError)
    assert "status 403" in error.summary
    assert "--role=roles/iam.workloadIdentityUser" in str(error)
    assert "gcloud auth" not in str(error)


async def test_without_any_credentials_every_source_is_listed(tmp_path: Path) -> None:
    async with tls_server() as server:
        error = await error_from(request_my_tpu())
    assert isinstance(error, CredentialsError)
    assert not error.retryable
    file = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    assert error.tried[:2] == (f"${VARIABLE}: not set", f"{file}: does not exist")
    assert error.tried[2].startswith("the metadata server: the name of http://metadata.invalid was not found")
    assert "Log in with `gcloud auth application-default login`" in str(error)
    assert services(server) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "was not found"),
        ("{", "is not a valid json file"),
        ("[]", "AttributeError"),
        ('{"type": "service_account", "private_key": "MARKER"}', "cannot be used: "),
        ('{"type": "external_account", "credential_source": {"executable": 5}}', "cannot be used: "),
    ],
)
async def test_an_invalid_file_is_reported_without_its_content(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv(VARIABLE, str(file))
    async with tls_server():
        error = await error_from(request_my_tpu())
    assert isinstance(error, CredentialsError)
    assert message in str(error)
    assert f"{file} (from ${VARIABLE}) cannot be used: " in str(error)
    assert "MARKER" not in all_text(error)


async def test_after_a_rejection_the_credentials_are_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_server() as server:
        file = server.write_service_account_key(tmp_path / "key.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"client_email": "another@example.com"}))
        monkeypatch.setenv(VARIABLE, str(file))
        resolver = new_resolver()
        assert isinstance(await error_from(resolver.nodes()), CredentialsError)
        server.write_service_account_key(file)
        assert await resolver.nodes()
        assert members(server) == [f"serviceAccount:{ROBOT}"]


async def test_the_quota_project_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "from-environment")
    async with tls_server() as server:
        monkeypatch.setenv(VARIABLE, str(server.write_service_account_key(tmp_path / "key.json")))
        await request_my_tpu()
        monkeypatch.delenv(VARIABLE)
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        await request_my_tpu()
        paying = [request.quota_project for request in server.requests if request.service == "tpu"]
    assert paying == ["from-environment"] * 2
