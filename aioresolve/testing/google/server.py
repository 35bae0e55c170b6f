"""`GoogleServer`: Google Cloud's APIs, token server and metadata server on loopback ports, for tests."""

from __future__ import annotations

import base64
import functools
import json
import re
import secrets
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioresolve.errors import MissingDependencyError
from aioresolve.testing.lifecycle import Controls, LoopbackServer, ThreadedServer, write_private
from aioresolve.testing.replies import Reply

from .apis import (
    Failure,
    compute_reply,
    failure_of_status,
    json_reply,
    no_such_page,
    tpu_reply,
    unauthenticated,
)
from .resources import Cloud

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aiohttp import web

    from aioresolve.testing.faults import Fault

_SERVICES = (
    ("metadata", re.compile(r"/|/computeMetadata/.*")),
    ("oauth2", re.compile(r"/token")),
    ("tpu", re.compile(r"/v2/projects/.*")),
    ("compute", re.compile(r"/compute/v1/.*")),
)
_ROOT = "/computeMetadata/v1/"
_ACCOUNT = "instance/service-accounts/default/"
_COMMON_HEADERS = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "X-XSS-Protection": "0"}
_TEXT_HEADERS = {**_COMMON_HEADERS, "Content-Type": "application/text"}
_JSON_HEADERS = {**_COMMON_HEADERS, "Content-Type": "application/json"}
_HTML_HEADERS = {**_COMMON_HEADERS, "Content-Type": "text/html; charset=UTF-8"}


@dataclass(frozen=True, slots=True)
class GoogleRequest:
    """A request that the server received, without its token, key or assertion.

    Attributes:
        method: `GET`, ...
        path: the path without the query.
        query: parameter name to (last) value.
        service: `metadata`, `oauth2`, `tpu`, `compute`; empty for anything else.
        scheme: how the client authenticated: `Bearer` or empty.
        user: the authenticated IAM member; None without a token, or if it was rejected.
        quota_project: the header `X-Goog-User-Project`.
        user_agent: the `User-Agent` header.
        time: when it arrived, in seconds of `time.monotonic()`.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    service: str = ""
    scheme: str = ""
    user: str | None = None
    quota_project: str = ""
    user_agent: str = ""
    time: float = 0.0


class GoogleControls(Cloud, Controls[GoogleRequest]):
    """The resources, metadata and credentials of a server; every method may be called from any thread.

    Attributes:
        tokens: access token to IAM member, in addition to the tokens that the server issues; None if the APIs
            need no credentials.
        token_lifetime: the lifetime in seconds of access tokens that are issued from now on.
        email: the service account's address.
    """

    tokens: dict[str, str] | None
    token_lifetime: float
    email: str
    _issued: dict[str, tuple[str, float]]  # token to IAM member and expiry in Unix time

    def revoke_tokens(self) -> None:
        """Reject every access token issued so far (401)."""
        self._issued.clear()

    @property
    def metadata_host(self) -> str:
        """`host:port` of the metadata server, which always speaks plain HTTP: for GCE_METADATA_HOST."""
        return self._host_and_port(self._ports[-1])

    def environ(self, directory: str | Path | None = None) -> dict[str, str]:
        """Return the environment variables with which google-auth, gcloud and aioresolve use this server.

        Without a directory these are the metadata server and the APIs. With one, files are written into it: a
        service account key for GOOGLE_APPLICATION_CREDENTIALS and, with TLS, the CA certificate for
        SSL_CERT_FILE; gcloud's own configuration is then ignored.

        google-auth reads GCE_METADATA_HOST when it is imported, so set it before, for a new process.
        """
        environ = {
            "GCE_METADATA_HOST": self.metadata_host,
            "GCE_METADATA_IP": self.metadata_host,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{self.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}/compute/v1/",
        }
        if directory is None:
            return environ
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        environ["CLOUDSDK_CONFIG"] = str(folder)
        key = self.write_service_account_key(folder / "key.json")
        environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(key)
        if self._tls:
            ca_file = folder / "ca.pem"
            ca_file.write_text(self.ca_pem)
            environ["SSL_CERT_FILE"] = str(ca_file)
        return environ

    def write_service_account_key(self, path: str | Path) -> Path:
        """Write a service account key to `path`; google-auth signs its token requests with it.

        Raises:
            MissingDependencyError: cryptography is not installed.
        """
        document = {
            "type": "service_account",
            "project_id": self._project,
            "private_key_id": "0123456789abcdef0123456789abcdef01234567",
            "private_key": _private_key(),
            "client_email": self.email,
            "client_id": "112233445566778899000",
            "token_uri": f"{self.url}/token",
            "universe_domain": "googleapis.com",
        }
        return write_private(Path(path), json.dumps(document, indent=2))


class GoogleServer(LoopbackServer[GoogleRequest], GoogleControls):
    """One project of Google Cloud on loopback ports, to test clients with.

    >>> async with GoogleServer([tpu_node("my-tpu", workers=4)]) as server:
    ...     os.environ.update(server.environ())
    ...     server.script("my-tpu", "CREATING", "READY")
    ...     state = await TPUClusterResolver("my-tpu").wait(4, interval=0.01)
    >>> state
    <ClusterState of 4 tasks: worker 4>

    It implements the Cloud TPU API (v2: nodes, queued resources), Compute Engine (v1: instances with filters
    by name, instance groups and their managers), the OAuth token server, and the GCE metadata server. Its
    data survives the end of the `async with` block.

    Args:
        nodes: TPU nodes from `tpu_node()`, and also queued resources and instances.
        project: the project's id.
        zone: the zone of resources with a short name.
        metadata: values of the metadata server by path, in addition to the usual ones; `tpu_vm()` returns
            those of a TPU VM.
        tls: use TLS for the APIs and token servers, with a certificate from an authority of their own (needs
            the extra `testing`). The metadata server speaks plain HTTP, on a port of its own.
        tokens: access token to IAM member (`serviceAccount:a@b`); the tokens that the server issues are
            accepted too. With None the APIs need no credentials.
        page_size: the maximum number of items per page.
        host: the loopback address to listen on.
        port: the port of the APIs; 0 takes a free one, which is kept.

    Raises:
        ConfigurationError: a resource is invalid.
    """

    def __init__(
        self,
        nodes: Iterable[Mapping[str, Any]] = (),
        *,
        project: str = "demo-project",
        zone: str = "us-central2-b",
        metadata: Mapping[str, str] | None = None,
        tls: bool = False,
        tokens: Mapping[str, str] | None = None,
        page_size: int = 500,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        email = f"robot@{project}.iam.gserviceaccount.com"
        LoopbackServer.__init__(self, host, port, tls=tls, plain_port=True)
        Cloud.__init__(self, project, zone, page_size)
        self.metadata = {**_default_metadata(project, zone, email), **(metadata or {})}
        self.tokens = None if tokens is None else dict(tokens)
        self.token_lifetime = 3599.0
        self.email = email
        self._issued = {}
        self.add(*nodes)

    def in_thread(self) -> ThreadedGoogleServer:
        """Return the same server for code without an event loop: `with server.in_thread() as server:`."""
        return ThreadedGoogleServer(self)

    def _record(self, request: web.Request) -> GoogleRequest:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return GoogleRequest(
            method=request.method,
            path=request.path,
            query=dict(request.query),
            service=next((service for service, paths in _SERVICES if paths.fullmatch(request.path)), ""),
            scheme=scheme,
            user=self._member(token),
            quota_project=request.headers.get("X-Goog-User-Project", ""),
            user_agent=request.headers.get("User-Agent", ""),
            time=time.monotonic(),
        )

    async def _reply(self, request: web.Request, record: GoogleRequest, faults: Sequence[Fault]) -> Reply:
        body = await request.read()
        try:
            return await self._service_reply(request, record, body)
        except Failure as failure:
            return failure.reply

    async def _service_reply(self, request: web.Request, record: GoogleRequest, body: bytes) -> Reply:
        if self._tls and request.secure == (record.service == "metadata"):
            raise no_such_page()
        form = dict(urllib.parse.parse_qsl(body.decode("utf-8", "replace")))
        match record.service:
            case "metadata":
                return self._metadata_reply(record.path, record.query, request.headers)
            case "oauth2":
                return self._oauth_reply(form)
            case "tpu" | "compute":
                if self.tokens is not None and record.user is None:
                    raise unauthenticated("Authorization" in request.headers)
                api = tpu_reply if record.service == "tpu" else compute_reply
                return api(self, record.method, record.path, record.query)
            case _:
                raise no_such_page()

    def _member(self, token: str) -> str | None:
        """Return the IAM member to which a token belongs, None if it is not valid."""
        if self.tokens is not None and token in self.tokens:
            return self.tokens[token]
        member, end = self._issued.get(token, ("", 0.0))
        return member if time.time() < end else None

    def _issue(self, member: str, **more: Any) -> dict[str, Any]:
        """Issue a token; return the JSON document of a token endpoint."""
        token = f"ya29.{secrets.token_urlsafe(24)}"
        self._issued[token] = (member, time.time() + self.token_lifetime)
        return {"access_token": token, "expires_in": int(self.token_lifetime), "token_type": "Bearer", **more}

    def _oauth_reply(self, form: Mapping[str, str]) -> Reply:
        """Return the reply of `oauth2.googleapis.com/token`."""
        if form.get("grant_type") == "refresh_token":
            return json_reply(self._issue("user:alice@example.com", scope=form.get("scope", "")))
        # RFC 7523; the signature is not verified.
        payload = form["assertion"].split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if claims.get("iss") != self.email:
            failure = {"error": "invalid_grant", "error_description": "Invalid grant: account not found"}
            return json_reply(failure, 400)  # RFC 6749, section 5.2
        return json_reply(self._issue(f"serviceAccount:{self.email}", scope=claims.get("scope", "")))

    def _metadata_reply(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        """Return the reply of the metadata server; `wait_for_change` is not implemented.

        Its rules: https://cloud.google.com/compute/docs/metadata/querying-metadata
        """
        if path == "/":
            return Reply(200, b"computeMetadata/\n", _TEXT_HEADERS)
        if headers.get("Metadata-Flavor") != "Google":
            return Reply(403, b"<!DOCTYPE html>\n<title>Error 403 (Forbidden)!!1</title>\n", _HTML_HEADERS)
        values = dict(self.metadata)
        # The default account is also available under its address.
        email = values.get(f"{_ACCOUNT}email", "default")
        name = path.removeprefix(_ROOT).replace(f"instance/service-accounts/{email}/", _ACCOUNT, 1)
        if name == f"{_ACCOUNT}token" and f"{_ACCOUNT}email" in values:
            document = self._issue(f"serviceAccount:{email}")
            return Reply(200, json.dumps(document).encode(), _JSON_HEADERS)
        within = {each.removeprefix(name): values[each] for each in values if each.startswith(name)}
        if name in values:
            return Reply(200, values[name].encode(), _TEXT_HEADERS)
        if name.endswith("/") and within and query.get("recursive") == "true":
            return Reply(200, json.dumps(_tree(within)).encode(), _JSON_HEADERS)
        return Reply(404, b"<!DOCTYPE html>\n<title>Error 404 (Not Found)!!1</title>\n", _HTML_HEADERS)

    def _complete(self, reply: Reply) -> Reply:
        body = failure_of_status(reply.status).body if reply.body is None else reply.body
        return Reply(reply.status, body, reply.headers)


class ThreadedGoogleServer(ThreadedServer, GoogleControls):
    """A `GoogleServer` in its own thread: `with` instead of `async with`, otherwise the same.

    >>> with GoogleServer([tpu_node("my-tpu", workers=4)]).in_thread() as server:
    ...     environ = server.environ()
    """


def _default_metadata(project: str, zone: str, email: str) -> dict[str, str]:
    """Return the values that every VM's metadata server has, by path."""
    return {
        "project/project-id": project,
        "project/numeric-project-id": "123456789012",
        "instance/id": "1152921504606846976",
        "instance/name": "loopback",
        "instance/zone": f"projects/123456789012/zones/{zone}",
        "instance/network-interfaces/0/ip": "10.128.0.2",
        "universe/universe-domain": "googleapis.com",
        f"{_ACCOUNT}aliases": "default",
        f"{_ACCOUNT}email": email,
        f"{_ACCOUNT}scopes": "https://www.googleapis.com/auth/cloud-platform",
    }


@functools.cache
def _private_key() -> str:
    """Return an RSA key as PEM; it is created once per process because that takes 0.1 s."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError as error:
        raise MissingDependencyError(
            "a service account key needs cryptography", hint="Run: pip install 'aioresolve[testing]'"
        ) from error
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem.decode()


def _tree(values: Mapping[str, str]) -> dict[str, Any]:
    """Return a directory as `recursive=true` shows it; values with one item per line become lists."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        directory = tree
        *parents, name = path.split("/")
        for parent in parents:
            directory = directory.setdefault(parent, {})
        directory[name] = value.split("\n") if name in ("scopes", "aliases") else value
    return tree
