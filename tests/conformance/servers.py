"""The embedded and the real API server with one interface."""

import abc
import base64
import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from aioresolve.testing import ThreadedKubernetesServer

from .client import Client, pods_path
from .control_plane import ControlPlane
from .states import pod

# `admin` has every permission, `limited` may read the pods of the test's own namespace, and the others have
# no permission until a test grants one.
USERS = ("limited", "applicant", "cluster-applicant")


class ApiServer(abc.ABC):
    """An API server, with a namespace that belongs to one test.

    Attributes:
        url: `https://127.0.0.1:port`.
        ca_pem: the certificate authority of its serving certificate, PEM.
        tokens: user name to bearer token.
        namespace: the test's namespace; the others may contain pods of other tests.
        version: major and minor version, such as (1, 36).
    """

    version: tuple[int, int]

    def __init__(self, url: str, ca_pem: str, tokens: Mapping[str, str], namespace: str) -> None:
        self.url = url
        self.ca_pem = ca_pem
        self.tokens = tokens
        self.namespace = namespace

    def client(self, user: str = "admin") -> Client:
        """Return a client for that user."""
        return Client(self.url, self.ca_pem, self.tokens[user])

    def kubeconfig(self, folder: Path, user: str = "admin") -> Path:
        """Write a kubeconfig file for that user, and return its path."""
        return write_kubeconfig(folder, self.url, self.ca_pem, user=user, token=self.tokens[user])

    async def prepare(self) -> None:
        """Create the namespace, and permit `limited` to read its pods."""
        async with self.client() as admin:
            self.version = parse_version((await admin.request("GET", "/version")).body["gitVersion"])
            await self.create_namespace(admin, self.namespace)
            await self.grant_limited(admin)

    @abc.abstractmethod
    async def create_namespace(self, admin: Client, name: str) -> None:
        """Create a namespace."""

    @abc.abstractmethod
    async def grant_limited(self, admin: Client) -> None:
        """Permit `limited` to read the pods of the test's namespace."""

    @abc.abstractmethod
    async def compact(self) -> None:
        """Expire every continue token and resourceVersion issued so far."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Stop as in a crash: connections break, and new ones are refused."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Start again after `stop`, at the same address and with the same data."""


class EmbeddedServer(ApiServer):
    """`aioresolve.testing.KubernetesServer`."""

    def __init__(self, embedded: ThreadedKubernetesServer, namespace: str) -> None:
        tokens = {user: token for token, user in (embedded.tokens or {}).items()}
        super().__init__(embedded.url, embedded.ca_pem or "", tokens, namespace)
        self._embedded = embedded
        self._down = contextlib.ExitStack()

    async def create_namespace(self, admin: Client, name: str) -> None:
        """Do nothing: every namespace exists."""

    async def grant_limited(self, admin: Client) -> None:
        self._embedded.allow = {"admin": None, "limited": {self.namespace}}
        self._embedded.resources = {"limited": {"pods"}}

    async def compact(self) -> None:
        self._embedded.compact()

    async def stop(self) -> None:
        await anyio.to_thread.run_sync(self._down.enter_context, self._embedded.down())

    async def start(self) -> None:
        await anyio.to_thread.run_sync(self._down.close)


class RealServer(ApiServer):
    """kube-apiserver."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        super().__init__(control_plane.url, control_plane.ca_pem, control_plane.tokens, namespace)
        self._control_plane = control_plane

    async def create_namespace(self, admin: Client, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await admin.write("POST", "/api/v1/namespaces", body)

    async def grant_limited(self, admin: Client) -> None:
        for path, manifest in reader_manifests("limited", self.namespace):
            await admin.write("POST", path, manifest)
        await self.wait_until_allowed("limited", self.namespace)

    async def wait_until_allowed(self, user: str, namespace: str | None) -> None:
        """Return when a grant to list pods is effective; the server learns of it by a watch."""
        path = pods_path(namespace)
        async with self.client(user) as client:
            with anyio.fail_after(10.0):
                while (await client.request("GET", path)).status == 403:  # noqa: ASYNC110
                    await anyio.sleep(0.01)

    async def compact(self) -> None:
        async with self.client() as admin:
            old = (await admin.list_pods(self.namespace)).version
            # API servers from 1.34 on also respond from their own snapshots, one for each write of a pod.
            # They keep the newest one, so that `old` expires only if pods are written after it. Dropping the
            # others took a server of 1.36 up to 15 seconds.
            short_lived, _ = pod("short-lived", self.namespace, "10.8.0.1")
            await admin.create_pod(short_lived)
            await admin.delete_pod(short_lived["metadata"], grace=0)
            await anyio.to_thread.run_sync(self._control_plane.compact)
            past = {"resourceVersion": old, "resourceVersionMatch": "Exact", "limit": "1"}
            with anyio.fail_after(60.0):
                while (await admin.list_pods(self.namespace, **past)).status != 410:  # noqa: ASYNC110
                    await anyio.sleep(0.05)

    async def stop(self) -> None:
        await anyio.to_thread.run_sync(self._control_plane.stop_api_server)

    async def start(self) -> None:
        await anyio.to_thread.run_sync(self._control_plane.start_api_server)


def parse_version(text: str) -> tuple[int, int]:
    """Return (1, 20) for "v1.20.2+build"."""
    found = re.match(r"v(\d+)\.(\d+)", text)
    assert found, f"invalid version: {text!r}"
    return int(found[1]), int(found[2])


def reader_manifests(user: str, namespace: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the paths and bodies of the objects that permit a user to read the pods of a namespace."""
    group = "rbac.authorization.k8s.io"
    path = f"/apis/{group}/v1/namespaces/{namespace}"
    metadata = {"name": f"{user}-reads-pods", "namespace": namespace}
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "Role",
        "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": metadata["name"]},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    return [(f"{path}/roles", role), (f"{path}/rolebindings", binding)]


def write_kubeconfig(folder: Path, url: str, ca_pem: str, *, user: str, token: str) -> Path:
    """Write a kubeconfig file (JSON is YAML) that only its owner can read, and return its path."""
    authority = base64.b64encode(ca_pem.encode()).decode()
    content = {
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    }
    path = folder / f"{user}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
    return path
