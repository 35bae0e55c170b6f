"""What a test can do to the loopback Google and see of it: the part of it that needs no loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError

from .tokens import service_account_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, MutableSequence

    from aioresolve.testing.certificates import CertificateAuthority
    from aioresolve.testing.faults import Fault

    from .cloud import Cloud
    from .requests import GoogleRequest

__all__ = ["GoogleControls", "Listeners"]

POOL = "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/pool"


class Listeners:
    """Where a server can be reached: ports are given or 0 until it has started, and kept when it stops."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.metadata_port = 0
        self.authority: CertificateAuthority | None = None


class GoogleControls:
    """Resources, metadata, tokens, faults and records of a server; for use from any thread."""

    def __init__(self, cloud: Cloud, listeners: Listeners, *, tls: bool) -> None:
        self._cloud = cloud
        self._listeners = listeners
        self._tls = tls

    # Where it is

    @property
    def host(self) -> str:
        """The address it listens at, such as `127.0.0.1`."""
        return self._listeners.host

    @property
    def port(self) -> int:
        """The port of the APIs and token servers; the one given (0: any) until the server has started."""
        return self._listeners.port

    @property
    def url(self) -> str:
        """`scheme://host:port` of the APIs and token servers."""
        return f"{'https' if self._tls else 'http'}://{self._at(self.port)}"

    @property
    def metadata_host(self) -> str:
        """`host:port` of the metadata server, which always speaks plain http: for GCE_METADATA_HOST."""
        return self._at(self._listeners.metadata_port if self._tls else self.port)

    @property
    def endpoints(self) -> dict[str, str]:
        """The base URL of each API, as a `GoogleSession` takes them."""
        return {"tpu": self.url, "compute": self.url}

    @property
    def ca_pem(self) -> str:
        """The certificate of the server's authority, PEM.

        Raises:
            ConfigurationError: the server speaks no TLS, or has not been started yet.
        """
        authority = self._listeners.authority
        if authority is None:
            raise ConfigurationError(
                "this server has no certificate authority: make it with tls=True, and start it first"
            )
        return authority.pem

    def environ(self, directory: str | Path | None = None) -> dict[str, str]:
        """The environment variables that point google-auth, gcloud and aioresolve at this server.

        Without a directory: the metadata server and the APIs. With one, files are written into it: a service
        account's key, which GOOGLE_APPLICATION_CREDENTIALS names, and, with TLS, the authority's certificate,
        which SSL_CERT_FILE names; no file of gcloud's is found any more.

        google-auth reads GCE_METADATA_HOST when it is imported: set it before, in a process of its own.
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
            authority = folder / "ca.pem"
            authority.write_text(self.ca_pem)
            environ["SSL_CERT_FILE"] = str(authority)
        return environ

    # What it holds

    def add(self, *resources: Mapping[str, Any]) -> None:
        """Write what `tpu_node`, `queued_resource` or `instance` made; of one name there is one.

        Raises:
            ConfigurationError: it is none of these.
        """
        for resource in resources:
            self._cloud.add(resource)

    def get(self, name: str) -> dict[str, Any]:
        """A resource as it is now, a new dict. A short name is one of the server's own project and zone.

        Raises:
            KeyError: there is no such resource.
        """
        shelf, full = self._cloud.find(name)
        return shelf.get(full) or {}

    def patch(self, name: str, **fields: Any) -> dict[str, Any]:
        """The resource once `fields` (in the API's spelling; None removes) have been merged into it.

        Raises:
            KeyError: there is no such resource.
        """
        shelf, full = self._cloud.find(name)
        return shelf.patch(full, fields)

    def script(self, name: str, *steps: str | Mapping[str, Any]) -> None:
        """Let each of the next requests that see a resource see the next step of its life.

        `script("my-tpu", "CREATING", "CREATING", "READY")` makes it READY at the third request; so it stays.

        Args:
            name: the resource, short or full name.
            steps: states (an instance's status), or fields to merge, such as
                `{"state": "READY", "health": None}`.

        Raises:
            KeyError: there is no such resource.
        """
        shelf, full = self._cloud.find(name)
        shelf.script(full, [_patch(step, full.split("/")[4]) for step in steps])

    def delete(self, name: str) -> None:
        """Let a resource be no more.

        Raises:
            KeyError: there is no such resource.
        """
        shelf, full = self._cloud.find(name)
        shelf.delete(full)

    @property
    def metadata(self) -> MutableMapping[str, str]:
        """What the metadata server says by path (`instance/zone`), to be changed at will."""
        return self._cloud.metadata

    @property
    def unreachable(self) -> MutableSequence[str]:
        """Zones that lists cannot reach, to be changed at will."""
        return self._cloud.unreachable

    @property
    def instance_groups(self) -> MutableMapping[str, list[str]]:
        """Instance group to the names of its instances, to be changed at will."""
        return self._cloud.instance_groups

    # Faults and records

    def inject(
        self, *faults: Fault, match: Callable[[GoogleRequest], bool] | None = None, times: int | None = 1
    ) -> None:
        """Let `faults`, together, befall the next `times` requests that `match` accepts.

        Without `match` every request is accepted, with `times=None` there is no end. A request meets the
        oldest injection that accepts it and no other.
        """
        if not faults:
            raise ConfigurationError("inject() needs a fault, such as Delay(1.0) or Answer(503)")
        self._cloud.faults.inject(faults, match, times)

    def clear_faults(self) -> None:
        """Forget every fault still to come."""
        self._cloud.faults.clear()

    @property
    def requests(self) -> tuple[GoogleRequest, ...]:
        """What was asked so far, oldest first (the last 100,000)."""
        return tuple(self._cloud.records)

    def forget_requests(self) -> None:
        """Start counting requests anew."""
        self._cloud.records.clear()

    # Who may do what

    @property
    def tokens(self) -> MutableMapping[str, str] | None:
        """Access token to IAM member, besides those the server issues; None while it is open to everybody."""
        return self._cloud.tokens.known

    @tokens.setter
    def tokens(self, tokens: Mapping[str, str] | None) -> None:
        self._cloud.tokens.known = None if tokens is None else dict(tokens)

    @property
    def token_lifetime(self) -> float:
        """Seconds that an access token issued from now on lasts."""
        return self._cloud.tokens.lifetime

    @token_lifetime.setter
    def token_lifetime(self, seconds: float) -> None:
        self._cloud.tokens.lifetime = seconds

    def revoke_tokens(self) -> None:
        """Let every access token issued so far be good no more (401)."""
        self._cloud.tokens.revoke()

    @property
    def denied(self) -> set[str]:
        """Permissions that nobody has (403), such as `tpu.nodes.get`, to be changed at will."""
        return self._cloud.denied

    @property
    def disabled_services(self) -> set[str]:
        """APIs that are not enabled (403), such as `tpu.googleapis.com`, to be changed at will."""
        return self._cloud.disabled_services

    @property
    def email(self) -> str:
        """The service account's address."""
        return self._cloud.tokens.email

    def write_service_account_key(self, path: str | Path) -> Path:
        """Write a service account's key, which it signs its requests for tokens with, to `path`.

        Raises:
            MissingDependencyError: cryptography is not installed.
        """
        document = service_account_key(self.email, self._cloud.project, f"{self.url}/token")
        return _written(path, document)

    def write_authorized_user(self, path: str | Path) -> Path:
        """Write what `gcloud auth application-default login` writes to `path`.

        google-auth asks Google's own token server for such a user, whatever the file says.
        """
        tokens = self._cloud.tokens
        document = {
            "type": "authorized_user",
            "client_id": tokens.client_id,
            "client_secret": tokens.client_secret,
            "refresh_token": tokens.refresh_token,
            "token_uri": f"{self.url}/token",
        }
        return _written(path, document)

    def write_external_account(self, path: str | Path, *, impersonate: str | None = None) -> Path:
        """Write the configuration of a federated workload to `path`, and its subject token beside it.

        Args:
            path: the file.
            impersonate: the address of a service account to go on as.
        """
        file = Path(path)
        token = file.with_suffix(".token")
        _private(token, self._cloud.tokens.subject_token)
        document: dict[str, Any] = {
            "type": "external_account",
            "audience": f"{POOL}/providers/loopback",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{self.url}/v1/token",
            "credential_source": {"file": str(token)},
        }
        if impersonate is not None:
            document["service_account_impersonation_url"] = self._impersonation(impersonate)
        return _written(file, document)

    def write_impersonated_account(self, path: str | Path, email: str) -> Path:
        """Write what `gcloud auth application-default login --impersonate-service-account` writes to `path`.

        Its source is the service account's key. google-auth asks Google's own server for the impersonated
        account's tokens, whatever the file says.
        """
        source = service_account_key(self.email, self._cloud.project, f"{self.url}/token")
        document = {
            "type": "impersonated_service_account",
            "delegates": [],
            "service_account_impersonation_url": self._impersonation(email),
            "source_credentials": source,
        }
        return _written(path, document)

    def _impersonation(self, email: str) -> str:
        return f"{self.url}/v1/projects/-/serviceAccounts/{email}:generateAccessToken"

    def _at(self, port: int) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


def _patch(step: str | Mapping[str, Any], collection: str) -> Mapping[str, Any]:
    """The fields that a step in the life of a resource changes."""
    if not isinstance(step, str):
        return step
    match collection:
        case "queuedResources":
            return {"state": {"state": step}}
        case "instances":
            return {"status": step}
    return {"state": step}


def _written(path: str | Path, document: Mapping[str, Any]) -> Path:
    return _private(Path(path), json.dumps(document, indent=2))


def _private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)
    return path
