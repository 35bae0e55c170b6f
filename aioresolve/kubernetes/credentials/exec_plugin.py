"""Exec plugins: a command of the kubeconfig prints our credentials.

Protocol: `client.authentication.k8s.io/v1` and `v1beta1`,
https://kubernetes.io/docs/reference/config-api/client-authentication.v1/.

The plugins are run here and not by `kubernetes_asyncio.config`: its reader reads one pipe after the other, so
that it and a plugin that says much on its standard error wait for each other for ever; it leaves the plugin
running when it is cancelled; and it drops a client certificate that comes with a token, and writes one
that comes alone, with its key, to files that stay until the process exits.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from aioresolve.errors import ConfigurationError, CredentialsError

from .commands import output_of
from .fields import json_in
from .identity import ClientCertificate, Identity, bearer, unix_time

if TYPE_CHECKING:
    from .entries import Cluster, ExecPlugin

__all__ = ["ExecCall", "exec_call", "identity_in"]

MAX_HINT = 1000


@dataclass(frozen=True, slots=True)
class ExecCall:
    """One plugin, and what it is told about the cluster."""

    plugin: ExecPlugin
    info: str = field(repr=False)

    @property
    def key(self) -> str:
        """The kubeconfig entry that the credentials belong to."""
        return self.plugin.where

    async def identity(self) -> Identity:
        """Return who the plugin says we are; it runs once.

        Raises:
            CredentialsError: it is not installed, failed, or printed no credentials.
        """
        plugin = self.plugin
        what = f"the plugin {os.path.basename(plugin.command)!r} ({plugin.where})"
        path = await anyio.to_thread.run_sync(_found, plugin, what, abandon_on_cancel=True)
        printed = await output_of(
            [path, *plugin.args],
            env={**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": self.info},
            what=what,
            secrets=[value for _, value in plugin.env],
        )
        return identity_in(printed, plugin.api_version, what)


def exec_call(plugin: ExecPlugin, cluster: Cluster, authorities: bytes | None) -> ExecCall:
    """Return the call of `plugin` for `cluster`, whose CA certificates are `authorities`.

    Raises:
        ConfigurationError: the cluster's extension for plugins holds what is no JSON.
    """
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        known = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": authorities and base64.b64encode(authorities).decode("ascii"),
            "proxy-url": cluster.proxy_url,
            "disable-compression": cluster.disable_compression,
            "config": cluster.exec_extension,
        }
        spec["cluster"] = {name: value for name, value in known.items() if value}
    try:
        info = json.dumps({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec})
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{cluster.where}: the extension for exec plugins holds what JSON cannot ({error}); "
            "put dates in quotes"
        ) from None
    return ExecCall(plugin, info)


def identity_in(printed: bytes, api_version: str, what: str) -> Identity:
    """Return the credentials in a plugin's output, an ExecCredential of that version.

    Raises:
        CredentialsError: it holds none; the message shows none of the output.
        ConfigurationError: its token or its time is malformed.
    """
    credential = json_in(printed)
    if not isinstance(credential, dict):
        raise CredentialsError(
            f"{what} printed no JSON object but {len(printed)} bytes of something else; "
            "it must print an ExecCredential (run it by hand to see)"
        )
    for name, expected in (("apiVersion", api_version), ("kind", "ExecCredential")):
        if credential.get(name) != expected:
            raise CredentialsError(
                f"{what} printed another {name} than {expected}, which the kubeconfig names; "
                "upgrade the plugin, or write the apiVersion it speaks into the kubeconfig"
            )
    status = credential.get("status")
    if not isinstance(status, dict):
        raise CredentialsError(f"{what} printed an ExecCredential without status: it gave no credentials")
    token = _text(status, "token", what)
    chain, key = _text(status, "clientCertificateData", what), _text(status, "clientKeyData", what)
    if not token and not chain and not key:
        raise CredentialsError(f"{what} gave neither a token nor a client certificate")
    if bool(chain) != bool(key):
        raise CredentialsError(
            f"{what} gave only one of clientCertificateData and clientKeyData; both are needed"
        )
    return Identity(
        authorization=bearer(token, f"the token of {what}") if token else None,
        certificate=ClientCertificate(chain.encode(), key.encode(), where=f"the client certificate of {what}")
        if chain
        else None,
        expires=unix_time(_text(status, "expirationTimestamp", what), f"the expirationTimestamp of {what}"),
    )


def _found(plugin: ExecPlugin, what: str) -> str:
    import shutil

    path = shutil.which(plugin.command)
    if path is not None:
        return path
    place = "there is no such program" if os.path.dirname(plugin.command) else "it is not on PATH"
    hint = "".join(char for char in plugin.install_hint or "" if char.isprintable() or char == "\n").strip()
    mend = hint[:MAX_HINT] or "Install it, or correct the command."
    raise CredentialsError(f"{what} is not installed: {place}. {mend}")


def _text(status: dict[str, Any], name: str, what: str) -> str:
    value = status.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CredentialsError(f"{what} gave a {name} that is no text")
    return value
