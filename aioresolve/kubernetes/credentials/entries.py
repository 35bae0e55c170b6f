"""The entries of a kubeconfig, looked into: the cluster to ask, the user to be. Pure: no file is read here.

Format: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/. Everything wrong is a
`ConfigurationError` that names file, entry and field. Entries hold secrets: no message and no repr shows
a token, a password, a key, a command's argument or variable.
"""

from __future__ import annotations

import base64
import binascii
import os.path
from dataclasses import dataclass, field
from typing import Any

from aioresolve.errors import ConfigurationError

from .addresses import checked_proxy, checked_server
from .fields import Fields

__all__ = ["AuthProvider", "Cluster", "Entry", "ExecPlugin", "Material", "User", "cluster_in", "user_in"]

EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXEC_EXTENSION = "client.authentication.k8s.io/exec"


@dataclass(frozen=True, slots=True)
class Entry:
    """One named entry of a list in a kubeconfig, not yet looked into.

    Attributes:
        where: words for messages: "kubeconfig /home/me/.kube/config, user 'dev'".
        folder: what relative paths in it are relative to.
        values: the mapping under `cluster`, `context` or `user`.
    """

    where: str
    folder: str
    values: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Material:
    """A PEM text, standing in the kubeconfig itself (`data`) or in a file (`path`)."""

    where: str
    data: bytes | None = field(default=None, repr=False)
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where an API server is, and how to know that it is the right one."""

    where: str
    server: str
    certificate_authority: Material | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = field(default=None, repr=False)
    disable_compression: bool = False
    exec_extension: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A command that prints credentials: https://kubernetes.io/docs/reference/access-authn-authz/authentication/"""

    where: str
    api_version: str
    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    install_hint: str | None = None
    provide_cluster_info: bool = False


@dataclass(frozen=True, slots=True)
class AuthProvider:
    """The older way of naming a source of tokens; client-go itself knows `oidc` only, since 1.26."""

    where: str
    name: str
    config: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class User:
    """Who to be; every field may be missing, and then the server sees `system:anonymous`."""

    where: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    client_certificate: Material | None = None
    client_key: Material | None = None
    exec_plugin: ExecPlugin | None = None
    auth_provider: AuthProvider | None = None
    impersonation: tuple[tuple[str, str], ...] = ()


def cluster_in(entry: Entry) -> Cluster:
    """What the entry of a cluster says.

    Raises:
        ConfigurationError: a field is wrong or missing, or two contradict each other.
    """
    fields = Fields(entry.values, entry.where)
    server = fields.text("server")
    if server is None:
        raise ConfigurationError(f"{entry.where}: has no server; add `server: https://HOST:PORT`")
    authority = _material(fields, "certificate-authority", entry.folder)
    insecure = fields.flag("insecure-skip-tls-verify")
    if insecure and authority is not None:
        raise ConfigurationError(
            f"{entry.where}: has both certificate-authority and insecure-skip-tls-verify: true, "
            "which contradict each other; remove insecure-skip-tls-verify"
        )
    proxy = fields.text("proxy-url")
    extensions = {
        extension.text("name"): extension.value("extension") for extension in fields.each("extensions")
    }
    return Cluster(
        where=entry.where,
        server=checked_server(server, f"{entry.where}: server"),
        certificate_authority=authority,
        insecure_skip_tls_verify=insecure,
        tls_server_name=fields.text("tls-server-name"),
        proxy_url=None if proxy is None else checked_proxy(proxy, f"{entry.where}: proxy-url"),
        disable_compression=fields.flag("disable-compression"),
        exec_extension=extensions.get(EXEC_EXTENSION),
    )


def user_in(entry: Entry) -> User:
    """What the entry of a user says.

    Raises:
        ConfigurationError: a field is wrong or missing, or two contradict each other.
    """
    fields = Fields(entry.values, entry.where)
    token, token_file = fields.text("token"), fields.text("tokenFile")
    username, password = fields.text("username"), fields.text("password")
    if (token or token_file) and (username or password):
        raise ConfigurationError(
            f"{entry.where}: has both a token and username/password, and only one can be sent; "
            "remove one of them"
        )
    certificate = _material(fields, "client-certificate", entry.folder)
    key = _material(fields, "client-key", entry.folder)
    if (certificate is None) != (key is None):
        there, missing = "client-certificate", "client-key"
        if certificate is None:
            there, missing = missing, there
        raise ConfigurationError(f"{entry.where}: has a {there} without its {missing}; add it")
    plugin, provider = fields.below("exec"), fields.below("auth-provider")
    if plugin is not None and provider is not None:
        raise ConfigurationError(f"{entry.where}: has both exec and auth-provider; remove auth-provider")
    return User(
        where=entry.where,
        token=token,
        token_file=None if token_file is None else os.path.join(entry.folder, token_file),
        username=username,
        password=password,
        client_certificate=certificate,
        client_key=key,
        exec_plugin=None if plugin is None else _exec_plugin(plugin, entry.folder),
        auth_provider=None if provider is None else _auth_provider(provider),
        impersonation=_impersonation(fields),
    )


def _exec_plugin(fields: Fields, folder: str) -> ExecPlugin:
    command = fields.text("command")
    if command is None:
        raise ConfigurationError(f"{fields.where}: has no command; add `command: NAME`")
    version = fields.text("apiVersion")
    if version not in EXEC_API_VERSIONS:
        raise ConfigurationError(
            f"{fields.where}: apiVersion is {version!r}; known are {' and '.join(EXEC_API_VERSIONS)} "
            "(upgrade the plugin and write its kubeconfig entry anew)"
        )
    mode = fields.text("interactiveMode")
    if mode == "Always":
        raise ConfigurationError(
            f"{fields.where}: interactiveMode is Always, so the plugin asks at the terminal, and here it "
            "gets none; set IfAvailable or Never, or log in with another plugin or a token"
        )
    if mode not in (None, "Never", "IfAvailable"):
        raise ConfigurationError(
            f"{fields.where}: interactiveMode is {mode!r}; it is one of Never, IfAvailable, Always"
        )
    env = [(each.text("name"), each.text("value")) for each in fields.each("env")]
    if any(name is None for name, _ in env):
        raise ConfigurationError(f"{fields.where}: an item of env has no name; add `name: VARIABLE`")
    # A bare name is looked up on PATH; a path is relative to the kubeconfig, as for client-go.
    return ExecPlugin(
        where=fields.where,
        api_version=str(version),
        command=os.path.join(folder, command) if os.path.dirname(command) else command,
        args=fields.texts("args"),
        env=tuple((str(name), value or "") for name, value in env),
        install_hint=fields.text("installHint"),
        provide_cluster_info=fields.flag("provideClusterInfo"),
    )


def _auth_provider(fields: Fields) -> AuthProvider:
    name = fields.text("name")
    if name is None:
        raise ConfigurationError(f"{fields.where}: has no name; add `name: oidc`, or use exec instead")
    config = fields.below("config")
    return AuthProvider(
        where=f"{fields.where} {name!r}",
        name=name,
        config=()
        if config is None
        else tuple((key, text) for key in config if (text := config.text(key)) is not None),
    )


def _impersonation(fields: Fields) -> tuple[tuple[str, str], ...]:
    """`as`, `as-uid` and `as-groups` as request headers; dropping one would act as somebody else."""
    groups = fields.texts("as-groups")
    if len(groups) > 1 or fields.below("as-user-extra") is not None:
        raise ConfigurationError(
            f"{fields.where}: impersonation with several as-groups or with as-user-extra is not supported; "
            "give at most one group, or bind the roles to the user itself"
        )
    headers = {
        "Impersonate-User": fields.text("as"),
        "Impersonate-Uid": fields.text("as-uid"),
        "Impersonate-Group": groups[0] if groups else None,
    }
    given = tuple((name, value) for name, value in headers.items() if value is not None)
    if given and headers["Impersonate-User"] is None:
        raise ConfigurationError(f"{fields.where}: has as-groups or as-uid without `as`; add `as: USER`")
    return given


def _material(fields: Fields, key: str, folder: str) -> Material | None:
    """`KEY-data` if it is there, else the file `KEY`: the data overrides the file."""
    data, path = fields.text(f"{key}-data"), fields.text(key)
    if data is not None:
        where = f"{fields.where}: {key}-data"
        try:
            return Material(where=where, data=base64.b64decode("".join(data.split()), validate=True))
        except (binascii.Error, ValueError):  # ValueError: not ASCII
            pass
        raise ConfigurationError(f"{where} is not base64; encode the PEM file with `base64 -w0`")
    if path is not None:
        return Material(where=f"{fields.where}: {key}", path=os.path.join(folder, path))
    return None
