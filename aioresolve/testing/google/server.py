"""`GoogleServer`: Google Cloud's APIs, token servers and metadata server on loopback ports, for tests."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioresolve.testing.lifecycle import Controls, LoopbackServer, ThreadedServer, write_private
from aioresolve.testing.replies import Reply

from .apis import Failure, compute_reply, failure_of_status, no_such_page, tpu_reply, unauthenticated
from .resources import Cloud
from .tokens import Tokens, default_metadata, metadata_reply, service_account_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aiohttp import web

    from aioresolve.testing.faults import Fault

_POOL = "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/pool"
_SERVICES = (
    ("metadata", re.compile(r"/|/computeMetadata/.*")),
    ("oauth2", re.compile(r"/token")),
    ("sts", re.compile(r"/v1/token")),
    ("iamcredentials", re.compile(r"/v1/projects/-/serviceAccounts/[^/:]+:generateAccessToken")),
    ("tpu", re.compile(r"/v[12]/projects/.*")),
    ("compute", re.compile(r"/compute/v1/.*")),
)


@dataclass(frozen=True, slots=True)
class GoogleRequest:
    """A request that the server received, without its token, key or assertion.

    Attributes:
        method: `GET`, ...
        path: the path without the query.
        query: parameter name to (last) value.
        service: `metadata`, `oauth2`, `sts`, `iamcredentials`, `tpu`, `compute`; empty for anything else.
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


class GoogleControls(Cloud, Tokens, Controls[GoogleRequest]):
    """The resources, metadata and credentials of a server; every method may be called from any thread."""

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
        document = service_account_key(self.email, self._project, f"{self.url}/token")
        return _write_json(path, document)

    def write_external_account(self, path: str | Path, *, impersonate: str | None = None) -> Path:
        """Write the configuration of a federated workload to `path`, and its subject token to a second file.

        Args:
            path: the file; the subject token gets the same name with the suffix `.token`.
            impersonate: the address of a service account to impersonate.
        """
        file = Path(path)
        token = write_private(file.with_suffix(".token"), self._subject_token)
        document: dict[str, Any] = {
            "type": "external_account",
            "audience": f"{_POOL}/providers/loopback",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{self.url}/v1/token",
            "credential_source": {"file": str(token)},
        }
        if impersonate is not None:
            document["service_account_impersonation_url"] = (
                f"{self.url}/v1/projects/-/serviceAccounts/{impersonate}:generateAccessToken"
            )
        return _write_json(file, document)


class GoogleServer(LoopbackServer[GoogleRequest], GoogleControls):
    """One project of Google Cloud on loopback ports, to test clients with.

    >>> async with GoogleServer([tpu_node("my-tpu", workers=4)]) as server:
    ...     os.environ.update(server.environ())
    ...     server.script("my-tpu", "CREATING", "READY")
    ...     state = await TPUClusterResolver("my-tpu").wait(4, interval=0.01)
    >>> state
    <ClusterState of 4 tasks: worker 4>

    It implements the Cloud TPU API (v1 and v2: nodes, queued resources), Compute Engine (v1: instances with
    filters by name, instance groups and their managers), the OAuth and STS token servers,
    `generateAccessToken` and the GCE metadata server. Its data survives the end of the `async with` block.

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
        self.metadata = {**default_metadata(project, zone, email), **(metadata or {})}
        Tokens.__init__(self, tokens, email)
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
                return metadata_reply(self, self, record.path, record.query, request.headers)
            case "oauth2":
                return self._oauth_reply(form)
            case "sts":
                return self._sts_reply(form)
            case "iamcredentials":
                email = record.path.rpartition("/")[2].partition(":")[0]
                return self._impersonation_reply(email, record.user)
            case "tpu" | "compute":
                if self.tokens is not None and record.user is None:
                    raise unauthenticated("Authorization" in request.headers)
                api = tpu_reply if record.service == "tpu" else compute_reply
                return api(self, record.method, record.path, record.query)
            case _:
                raise no_such_page()

    def _complete(self, reply: Reply) -> Reply:
        body = failure_of_status(reply.status).body if reply.body is None else reply.body
        return Reply(reply.status, body, reply.headers)


class ThreadedGoogleServer(ThreadedServer, GoogleControls):
    """A `GoogleServer` in its own thread: `with` instead of `async with`, otherwise the same.

    >>> with GoogleServer([tpu_node("my-tpu", workers=4)]).in_thread() as server:
    ...     environ = server.environ()
    """


def _write_json(path: str | Path, document: Mapping[str, Any]) -> Path:
    return write_private(Path(path), json.dumps(document, indent=2))
