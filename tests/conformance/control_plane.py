"""A real Kubernetes control plane for tests: etcd and kube-apiserver on loopback, nothing else.

The binaries come from the folder that `KUBEBUILDER_ASSETS` names, the convention of controller-runtime's
envtest (https://book.kubebuilder.io/reference/envtest). There is no controller, scheduler or kubelet: a pod
stays exactly as the test wrote it, which is what a test wants. The flags are those that every
kube-apiserver from 1.20 to 1.36 takes.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import trustme

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
BINARIES = ("etcd", "kube-apiserver")

# The key under which an API server notes the revision it compacts etcd to. From 1.34 on, API servers watch
# it and drop their own snapshots up to there, so whoever compacts behind their back has to write it.
COMPACTED_REVISION_KEY = "compact_rev_key"


class ControlPlaneError(Exception):
    """A process of the control plane did not start, or ended too early; the message ends in its log."""


def missing_assets() -> str:
    """Why no control plane can be started here, or "" when one can."""
    folder = os.environ.get(ASSETS_VARIABLE)
    if not folder:
        return f"{ASSETS_VARIABLE} is not set: it names a folder with {' and '.join(BINARIES)}"
    absent = [name for name in BINARIES if not os.access(Path(folder) / name, os.X_OK)]
    if absent:
        return f"{ASSETS_VARIABLE}={folder} has no executable {' and no '.join(absent)}"
    return ""


@dataclass(frozen=True, slots=True)
class Account:
    """Someone the API server knows by a static token."""

    user: str
    groups: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def csv(self) -> str:
        """The account's line in the file for `--token-auth-file`."""
        line = f"{self.token},{self.user},{self.user}"
        return f'{line},"{",".join(self.groups)}"' if self.groups else line


class ControlPlane:
    """etcd and kube-apiserver, started on entry of a `with` and killed and deleted on its exit.

    Attributes:
        url: the API server, `https://127.0.0.1:port`.
        ca_pem: the certificate authority of its serving certificate, PEM.
        tokens: user name to bearer token; `admin` may do everything, everyone else nothing yet.
    """

    def __init__(self, assets: str | os.PathLike[str], *, users: tuple[str, ...] = ()) -> None:
        self._assets = Path(assets)
        self._accounts = (Account("admin", ("system:masters",)), *(Account(user) for user in users))
        self._folder = Path(tempfile.mkdtemp(prefix="control-plane-"))
        self._etcd_port, self._peer_port, self._port = free_ports(3)
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api_server: subprocess.Popen[bytes] | None = None

        authority = trustme.CA()
        self.ca_pem: str = authority.cert_pem.bytes().decode()
        self._tls = ssl.create_default_context(cadata=self.ca_pem)
        serving = authority.issue_cert("127.0.0.1", "localhost")
        serving.private_key_pem.write_to_path(self._folder / "serving.key")
        (self._folder / "serving.crt").write_bytes(b"".join(pem.bytes() for pem in serving.cert_chain_pems))
        (self._folder / "tokens.csv").write_text("".join(account.csv() + "\n" for account in self._accounts))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def tokens(self) -> dict[str, str]:
        return {account.user: account.token for account in self._accounts}

    def start(self, *, timeout: float = 60.0) -> None:
        """Start both processes and return when the API server is ready, at most `timeout` seconds later."""
        deadline = time.monotonic() + timeout
        self._etcd = self._spawn("etcd", self._etcd_flags())
        self._wait("etcd", self._etcd, self._check_etcd, deadline)
        self.start_api_server(timeout=deadline - time.monotonic())

    def start_api_server(self, *, timeout: float = 60.0) -> None:
        """Start kube-apiserver on the port it always had; what etcd holds is still there."""
        self._api_server = self._spawn("kube-apiserver", self._api_server_flags())
        self._wait("kube-apiserver", self._api_server, self._check_api_server, time.monotonic() + timeout)

    def stop_api_server(self) -> None:
        """Kill kube-apiserver at once, as a crash would: open connections are reset, nothing is finished."""
        stop(self._api_server)
        self._api_server = None

    def compact(self) -> None:
        """Forget every revision but the newest: continue tokens and resourceVersions handed out expire."""
        newest = self._etcd_call("/v3/kv/range", {"key": encoded(COMPACTED_REVISION_KEY)})["header"]
        note = {"key": encoded(COMPACTED_REVISION_KEY), "value": encoded(newest["revision"])}
        written = self._etcd_call("/v3/kv/put", note)["header"]
        self._etcd_call("/v3/kv/compaction", {"revision": written["revision"], "physical": True})

    def log(self, name: str, *, lines: int = 40) -> str:
        """The last `lines` lines that the binary `name` wrote."""
        path = self._folder / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """Kill both processes and delete what they wrote; again does nothing."""
        self.stop_api_server()
        stop(self._etcd)
        self._etcd = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _etcd_flags(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        flags = [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]
        # Since 3.5; the data live as long as the test session and need not survive a power cut.
        usage = subprocess.run(
            [self._assets / "etcd", "--help"], capture_output=True, check=False, timeout=10
        )
        return [*flags, "--unsafe-no-fsync"] if b"--unsafe-no-fsync" in usage.stdout + usage.stderr else flags

    def _api_server_flags(self) -> list[str]:
        key = self._folder / "serving.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._folder / 'certificates'}",
            f"--tls-cert-file={self._folder / 'serving.crt'}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            # The three service account flags are required from 1.20 on; no account is ever used.
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # It wants a "default" account in each namespace, which only a controller would make.
            "--disable-admission-plugins=ServiceAccount",
            # The `kubernetes` Endpoints object may not hold a loopback address.
            "--endpoint-reconciler-type=none",
        ]

    def _spawn(self, name: str, flags: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [self._assets / name, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _wait(
        self, name: str, process: subprocess.Popen[bytes], check: Callable[[], None], deadline: float
    ) -> None:
        """Return when `check` raises nothing any more."""
        last = "it was never asked"
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ControlPlaneError(f"{name} ended with code {process.returncode}:\n{self.log(name)}")
            try:
                check()
            except (OSError, http.client.HTTPException) as error:
                last = str(error)
                time.sleep(0.05)
            else:
                return
        raise ControlPlaneError(f"{name} is not ready in time ({last}):\n{self.log(name)}")

    def _check_etcd(self) -> None:
        self._etcd_call("/v3/maintenance/status", {})

    def _check_api_server(self) -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=5.0, context=self._tls)
        headers = {"Authorization": f"Bearer {self.tokens['admin']}"}
        answer_of(connection, "GET", "/readyz", headers=headers)

    def _etcd_call(self, path: str, body: Mapping[str, str | bool]) -> Any:
        """What etcd's gRPC gateway (JSON over HTTP, on the client port) answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=10.0)
        return json.loads(answer_of(connection, "POST", path, body=json.dumps(body)))


def answer_of(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    *,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The body of the answer to one request; raises `HTTPException` unless its status is 200."""
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise http.client.HTTPException(f"{answer.status} {content.decode(errors='replace')}")
    return content


def encoded(text: str) -> str:
    """`text` as etcd's gateway wants its keys and values."""
    return base64.b64encode(text.encode()).decode()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listened on a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def stop(process: subprocess.Popen[bytes] | None) -> None:
    """Kill `process` and reap it; None, or one that has ended, is stopped already."""
    if process is not None:
        process.kill()
        process.wait(timeout=10.0)
