"""What a test can do to a server and see of it: the part of it that needs no loop."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError

from .disturbances import Disturbance, checked_disturbance
from .store import Expired
from .writes import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, MutableMapping

    from aioresolve.testing.certificates import CertificateAuthority
    from aioresolve.testing.faults import Fault

    from .cluster import Cluster
    from .requests import RequestRecord
    from .store import StoredPod

__all__ = ["Controls", "Listener", "no_connections", "not_running"]


class Listener:
    """Where a server can be reached: empty until it has started, kept when it stops."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.authority: CertificateAuthority | None = None
        self.connections: Callable[[], int] = no_connections


def not_running() -> ConfigurationError:
    """The error of what can only be done to a running server."""
    return ConfigurationError(
        "this KubernetesServer is not running: enter it with `async with` or `with` first"
    )


def no_connections() -> int:
    """How many connections a server has that is not running."""
    return 0


class Controls:
    """Pods, faults, users and records of a running server; every method may be called from any thread."""

    def __init__(self, cluster: Cluster, listener: Listener, *, tls: bool) -> None:
        self._cluster = cluster
        self._listener = listener
        self._tls = tls

    # Where it is

    @property
    def host(self) -> str:
        """The address it listens at, such as `127.0.0.1`."""
        return self._listener.host

    @property
    def port(self) -> int:
        """The port it listens at; the one given (0: any) until the server has started."""
        return self._listener.port

    @property
    def url(self) -> str:
        """`scheme://host:port`, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    @property
    def ca_pem(self) -> str:
        """The certificate of the server's authority, PEM.

        Raises:
            ConfigurationError: the server speaks no TLS, or has not been started yet.
        """
        return self._authority.pem

    @property
    def _authority(self) -> CertificateAuthority:
        authority = self._listener.authority
        if authority is None:
            raise ConfigurationError(
                "this server has no certificate authority: make it with tls=True, and start it first"
            )
        return authority

    # Pods

    @property
    def pods(self) -> list[dict[str, Any]]:
        """Every pod as it is now, by namespace and name; new dicts."""
        store = self._cluster.store
        with store.lock:
            return [pod.as_dict() for pod in store.pods_at(store.version)]

    @property
    def resource_version(self) -> int:
        """The version of the newest write."""
        return self._cluster.store.version

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        """The pod as it is now, a new dict.

        Raises:
            ConfigurationError: there is no such pod.
        """
        return self._stored(name, namespace).as_dict()

    def add(self, *pods: Mapping[str, Any]) -> None:
        """Write pods as they are given, status and all, in the place of those of the same name."""
        for pod in pods:
            self._cluster.store.put(pod)

    def patch(self, name: str, namespace: str = "default", *, patch: Mapping[str, Any]) -> dict[str, Any]:
        """The pod once `patch` has been merged into all of it (RFC 7386: None removes), in one write.

        Raises:
            ConfigurationError: there is no such pod.
        """
        store = self._cluster.store
        with store.lock:
            return store.put(merged(self._stored(name, namespace).as_dict(), patch)).as_dict()

    def delete(self, name: str, namespace: str = "default", *, grace_period_seconds: int | None = 0) -> None:
        """Delete the pod as a client would: at once by default; None takes the pod's own grace period.

        A pod that has finalizers, or time left, stays with a deletionTimestamp until `finish_deletion` or
        until it is deleted again without a grace period.

        Raises:
            ConfigurationError: there is no such pod.
        """
        with self._cluster.store.lock:
            self._stored(name, namespace)
            self._cluster.writer.delete(namespace, name, grace_period_seconds)

    def finish_deletion(self, name: str, namespace: str = "default") -> None:
        """Let a pod that is being deleted go for good, finalizers or not.

        Raises:
            ConfigurationError: there is no such pod, or nobody has asked it to go.
        """
        with self._cluster.store.lock:
            self._stored(name, namespace)
            if self._cluster.writer.finish_deletion(namespace, name) is None:
                raise ConfigurationError(f"pod {namespace}/{name} is not being deleted: call delete() first")

    def compact(self) -> None:
        """Forget the past: continue tokens and versions handed out so far have expired (410)."""
        self._cluster.store.compact()

    def restore(self, version: int) -> None:
        """Let everything be as of `version`, as from a backup: what was written since has never been.

        Clients that know newer versions know of a future: lists that ask for them are answered 504, watches
        wait. A real server is down meanwhile: `async with server.down(): server.restore(version)`.

        Raises:
            ConfigurationError: that version is no longer known, or not yet.
        """
        store = self._cluster.store
        with store.lock:
            if version > store.version:
                raise ConfigurationError(f"version {version} is yet to come: the newest is {store.version}")
            try:
                store.restore(version)
            except Expired as error:
                raise ConfigurationError(f"{error}; a larger `history` keeps more of them") from error
            self._cluster.answers.clear()

    def bookmark(self) -> None:
        """Send a bookmark, now, to every watch that allows bookmarks; as many as the calls."""
        self._cluster.pulse.ask_bookmarks()

    def _stored(self, name: str, namespace: str) -> StoredPod:
        stored = self._cluster.store.get(namespace, name)
        if stored is None:
            raise ConfigurationError(
                f"there is no pod {namespace}/{name}: add() it first, or name its namespace"
            )
        return stored

    # Faults and records

    def inject(
        self, *faults: Fault, match: Callable[[RequestRecord], bool] | None = None, times: int | None = 1
    ) -> None:
        """Let `faults`, together, befall the next `times` requests that `match` accepts.

        Without `match` every request is accepted, with `times=None` there is no end. A request meets the
        oldest injection that accepts it and no other.

        Raises:
            ConfigurationError: there is no fault, or it is to happen less than once.
        """
        if not faults:
            raise ConfigurationError("inject() needs a fault, such as Delay(1.0) or Answer(503)")
        if times is not None and times < 1:
            raise ConfigurationError(f"inject(times={times}): a fault happens at least once")
        self._cluster.faults.inject(faults, match, times)

    @property
    def faults(self) -> tuple[tuple[Fault, ...], ...]:
        """The faults still to come, one entry an injection."""
        return self._cluster.faults.pending

    def clear_faults(self) -> None:
        """Forget every fault still to come."""
        self._cluster.faults.clear()

    def disturb(self, fault: Fault, *, match: Callable[[RequestRecord], bool] | None = None) -> int:
        """Let `fault` befall the watches under way whose request `match` accepts; return how many these are.

        What has been written so far is told first. `Cut`, `End`, `Reset` and `Stall` count the bytes from
        there on: `Cut(after=20)` closes the connection within the line of the next event, `Cut(after=0)` at
        once. `Delay` holds up what follows, and `WatchError` ends the watch with an ERROR event.

        Raises:
            ConfigurationError: it is another fault, which comes before an answer or in its place.
        """
        store, checked = self._cluster.store, checked_disturbance(fault)
        with store.lock:
            disturbance = Disturbance(checked, store.version)
            running = tuple(self._cluster.watches)
            watches = [watch for watch in running if match is None or match(watch.request)]
            for watch in watches:
                watch.disturbances.append(disturbance)
        self._cluster.pulse.beat()
        return len(watches)

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        """What was asked so far, oldest first (the last 100,000)."""
        return tuple(self._cluster.records)

    def forget_requests(self) -> None:
        """Start counting requests anew."""
        self._cluster.records.clear()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._listener.connections()

    @property
    def watches(self) -> int:
        """How many watches are connected."""
        return len(self._cluster.watches)

    # Users

    @property
    def tokens(self) -> MutableMapping[str, str] | None:
        """Bearer token to user, to be changed at will; None while the server is open to everybody."""
        return self._cluster.access.tokens

    @tokens.setter
    def tokens(self, tokens: Mapping[str, str] | None) -> None:
        self._cluster.access.tokens = None if tokens is None else dict(tokens)

    @property
    def passwords(self) -> MutableMapping[str, str]:
        """User to password, to be changed at will."""
        return self._cluster.access.passwords

    @property
    def allow(self) -> MutableMapping[str, Collection[str] | None] | None:
        """User to its namespaces (None: all), to be changed at will; None while nobody is restricted."""
        return self._cluster.access.allow

    @allow.setter
    def allow(self, allow: Mapping[str, Collection[str] | None] | None) -> None:
        self._cluster.access.allow = None if allow is None else dict(allow)

    def client_certificate(self, user: str) -> tuple[str, str]:
        """Certificate chain and private key (PEM) with which a client is `user`.

        Raises:
            ConfigurationError: the server speaks no TLS, or has not been started yet.
        """
        return self._authority.client_certificate(user)

    def kubeconfig(
        self,
        *,
        token: str | None = None,
        password_of: str | None = None,
        certificate_of: str | None = None,
        namespace: str | None = None,
        context: str = "loopback",
    ) -> dict[str, Any]:
        """A kubeconfig with one context for this server, its authority's certificate included.

        Without credentials named, the first of `tokens` is taken, if there is one.

        Args:
            token: a bearer token.
            password_of: a user of `passwords`, for basic authentication.
            certificate_of: the name of a user for whom a client certificate is made (TLS only).
            namespace: the namespace of the context.
            context: the name of the context, the cluster and the user in it.

        Raises:
            ConfigurationError: `password_of` has no password, or a certificate is asked for without TLS.
        """
        cluster: dict[str, Any] = {"server": self.url}
        if self._tls:
            cluster["certificate-authority-data"] = _base64(self.ca_pem)
        user: dict[str, Any] = {}
        if certificate_of is not None:
            chain, key = self.client_certificate(certificate_of)
            user = {"client-certificate-data": _base64(chain), "client-key-data": _base64(key)}
        elif password_of is not None:
            user = {"username": password_of, "password": self._password(password_of)}
        elif token or self.tokens:
            user = {"token": token or next(iter(self.tokens or ()))}
        named = {"cluster": context, "user": context} | ({"namespace": namespace} if namespace else {})
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": context, "user": user}],
            "contexts": [{"name": context, "context": named}],
            "current-context": context,
        }

    def _password(self, user: str) -> str:
        if user not in self.passwords:
            raise ConfigurationError(f"user {user!r} has no password: add it to passwords")
        return self.passwords[user]

    def write_kubeconfig(
        self,
        path: str | Path,
        *,
        token: str | None = None,
        password_of: str | None = None,
        certificate_of: str | None = None,
        namespace: str | None = None,
        context: str = "loopback",
    ) -> Path:
        """Write `kubeconfig(...)` to `path` (as JSON, which is YAML too), readable by its owner alone."""
        document = self.kubeconfig(
            token=token,
            password_of=password_of,
            certificate_of=certificate_of,
            namespace=namespace,
            context=context,
        )
        return _write_private(Path(path), json.dumps(document, indent=2))

    def in_cluster(
        self, directory: str | Path, *, token: str | None = None, namespace: str = "default"
    ) -> dict[str, str]:
        """Write the service account files (`token`, `ca.crt`, `namespace`) into `directory`.

        Returns:
            The environment of a pod of this cluster: `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.

        Raises:
            ConfigurationError: the server speaks no TLS; in a cluster clients speak nothing else.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "ca.crt").write_text(self.ca_pem)
        (directory / "namespace").write_text(namespace)
        _write_private(directory / "token", token or next(iter(self.tokens or ("",))))
        return {"KUBERNETES_SERVICE_HOST": self.host, "KUBERNETES_SERVICE_PORT": str(self.port)}


def _base64(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()


def _write_private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)
    return path
