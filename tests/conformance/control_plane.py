"""A real Kubernetes control plane for tests: only etcd and kube-apiserver, on loopback ports.

The binaries come from the folder that `KUBEBUILDER_ASSETS` names, the convention of controller-runtime's
envtest (https://book.kubebuilder.io/reference/envtest). There is no controller, scheduler or kubelet, so that
a pod remains exactly as the test wrote it.
"""

import base64
import http.client
import json
import os
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import trustme

from tests.programs import free_ports

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
BINARIES = ("etcd", "kube-apiserver")

# The key in which an API server records the revision to which it compacts etcd. API servers from 1.34 on
# watch it and drop their own snapshots up to there, so a test that compacts etcd directly has to write it
# too.
COMPACTED_REVISION_KEY = "compact_rev_key"


class ControlPlaneError(Exception):
    """A process of the control plane did not start, or exited too early; the message includes its log."""


def missing_assets() -> str:
    """Return why no control plane can be started here, "" if one can."""
    folder = os.environ.get(ASSETS_VARIABLE)
    if not folder:
        return f"{ASSETS_VARIABLE} is not set: it names a folder with {' and '.join(BINARIES)}"
    absent = [name for name in BINARIES if not os.access(Path(folder) / name, os.X_OK)]
    if absent:
        return f"{ASSETS_VARIABLE}={folder} has no executable {' and no '.join(absent)}"
    return ""


class ControlPlane:
    """etcd and kube-apiserver; a `with` block starts them, and at its end kills them and deletes their data.

    Attributes:
        url: the API server, `https://127.0.0.1:port`.
        ca_pem: the certificate authority of its serving certificate, PEM.
        tokens: user name to bearer token; `admin` has every permission, the others have none yet.
    """

    def __init__(self, assets: str | os.PathLike[str], *, users: tuple[str, ...] = ()) -> None:
        self._assets = Path(assets)
        self.tokens = {user: secrets.token_hex(16) for user in ("admin", *users)}
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
        groups = {"admin": ',"system:masters"'}
        lines = [f"{token},{user},{user}{groups.get(user, '')}\n" for user, token in self.tokens.items()]
        (self._folder / "tokens.csv").write_text("".join(lines))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def start(self, *, timeout: float = 60.0) -> None:
        """Start both processes, and return when the API server is ready, within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._etcd = self._spawn("etcd", self._etcd_flags())
        self._wait("etcd", self._etcd, partial(self._etcd_call, "/v3/maintenance/status", {}), deadline)
        self.start_api_server(timeout=deadline - time.monotonic())

    def start_api_server(self, *, timeout: float = 60.0) -> None:
        """Start kube-apiserver on its port, with the data in etcd."""
        self._api_server = self._spawn("kube-apiserver", self._api_server_flags())
        self._wait("kube-apiserver", self._api_server, self._check_api_server, time.monotonic() + timeout)

    def stop_api_server(self) -> None:
        """Kill kube-apiserver as in a crash: open connections are reset, and no request is finished."""
        stop(self._api_server)
        self._api_server = None

    def compact(self) -> None:
        """Discard all revisions but the latest, so that continue tokens and resourceVersions expire."""
        newest = self._etcd_call("/v3/kv/range", {"key": to_base64(COMPACTED_REVISION_KEY)})["header"]
        entry = {"key": to_base64(COMPACTED_REVISION_KEY), "value": to_base64(newest["revision"])}
        written = self._etcd_call("/v3/kv/put", entry)["header"]
        self._etcd_call("/v3/kv/compaction", {"revision": written["revision"], "physical": True})

    def log(self, name: str, *, lines: int = 40) -> str:
        """Return the last `lines` lines of the log of the binary `name`."""
        path = self._folder / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """Kill both processes and delete their data; calling it again has no effect."""
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
        return [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # the data are needed only during the test session
        ]

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
            # The three service account flags are required from 1.20 on, although no account is used.
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # It requires a "default" account in each namespace, which only a controller creates.
            "--disable-admission-plugins=ServiceAccount",
            # The `kubernetes` Endpoints object must not contain a loopback address.
            "--endpoint-reconciler-type=none",
        ]

    def _spawn(self, name: str, flags: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [self._assets / name, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _wait(
        self, name: str, process: subprocess.Popen[bytes], check: Callable[[], object], deadline: float
    ) -> None:
        """Return when `check` succeeds."""
        last = "no request was made"
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ControlPlaneError(f"{name} ended with code {process.returncode}:\n{self.log(name)}")
            try:
                check()
            except (OSError, http.client.HTTPException) as error:  # an error status is an OSError
                last = str(error)
                time.sleep(0.05)
            else:
                return
        raise ControlPlaneError(f"{name} is not ready in time ({last}):\n{self.log(name)}")

    def _check_api_server(self) -> None:
        headers = {"Authorization": f"Bearer {self.tokens['admin']}"}
        ready = urllib.request.Request(f"{self.url}/readyz", headers=headers)
        urllib.request.urlopen(ready, timeout=5.0, context=self._tls).close()

    def _etcd_call(self, path: str, body: Mapping[str, str | bool]) -> Any:
        """Call etcd's gRPC gateway (JSON over HTTP, on the client port) and return the response."""
        url, data = f"http://127.0.0.1:{self._etcd_port}{path}", json.dumps(body).encode()
        with urllib.request.urlopen(url, data, timeout=10.0) as response:
            return json.load(response)


def to_base64(text: str) -> str:
    """Return `text` in the encoding of keys and values in etcd's gateway."""
    return base64.b64encode(text.encode()).decode()


def stop(process: subprocess.Popen[bytes] | None) -> None:
    """Kill `process`, if there is one and it still runs, and reap it."""
    if process is not None:
        process.kill()
        process.wait(timeout=10.0)
