"""How a user of a kubeconfig authenticates: by tokens and certificates, or by a plugin that prints them.

Protocol of plugins: `client.authentication.k8s.io/v1` and `v1beta1`,
https://kubernetes.io/docs/reference/config-api/client-authentication.v1/.

`kubernetes_asyncio.config` is not used. It reads one pipe of a plugin after the other, which deadlocks with a
plugin that writes much to its standard error; it leaves the plugin running when it is cancelled; and it drops
a client certificate that comes with a token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import nullcontext, suppress
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from msgspec.structs import replace

from aioresolve._core.concurrency import wait_until_done
from aioresolve._core.secrets import Confidential
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError, CredentialsError, Hint

from .kubeconfig import parse_document

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import IO

    from .kubeconfig import Cluster, ExecPlugin, User

EXPIRY_MARGIN = 10.0
"""Seconds before its end at which an identity counts as expired, so that it does not expire on the way."""

MAX_OUTPUT = 16 << 20
"""The maximum length of the standard output, and of the standard error, in bytes."""

MAX_QUOTED = 2000
"""Characters of standard error that a message shows, from its end."""

CHECK_INTERVAL = 0.1
"""Seconds between two checks of the length of the output."""

KILL_GRACE = 5.0
"""Seconds to wait for the exit of a killed process; it takes milliseconds unless the kernel hangs."""


class ClientCertificate(Confidential, frozen=True):
    """A certificate chain and its key, as PEM; `where` says where they come from, for errors."""

    chain: bytes
    key: bytes
    where: str


class Identity(Confidential, frozen=True):
    """What authenticates the client: an Authorization header, a client certificate, both, or nothing.

    `expires` is in seconds of Unix time; None if unknown.
    """

    authorization: str | None = None
    certificate: ClientCertificate | None = None
    expires: float | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether it does not expire within EXPIRY_MARGIN."""
        return self.expires is None or time() < self.expires - EXPIRY_MARGIN

    is_valid = is_fresh

    @property
    def headers(self) -> dict[str, str]:
        """The headers that authenticate a request; a certificate may replace them."""
        return {} if self.authorization is None else {"Authorization": self.authorization}


def bearer(token: str, where: str) -> str:
    """Return the Authorization header of a bearer token, if it contains only characters of a token."""
    token = token.strip()
    if not token:
        raise ConfigurationError(f"{where} is empty", hint="Write the token there.")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigurationError(
            f"{where} contains a line break, a space or another character that is invalid in a token",
            hint="Write only the token there.",
        )
    return f"Bearer {token}"


def jwt_claims(token: str) -> dict[str, Any] | None:
    """Return the claims of a JSON Web Token (RFC 7519), which is not verified; None for any other token."""
    if token.isascii() and token.count(".") == 2:
        payload = token.split(".")[1]
        with suppress(binascii.Error, msgspec.MsgspecError, UnicodeError, RecursionError):
            content = base64.urlsafe_b64decode(payload + "==")  # more than it needs is ignored
            return msgspec.json.decode(content, type=dict[str, Any])
    return None


def static_identity(user: User) -> Identity:
    """Return the credentials in the kubeconfig and in files, if there are any."""
    identity = Identity(authorization=_authorization(user))
    if identity.authorization is None and user.auth_provider is not None:
        identity = _identity_of_provider(user)
    where = f"{user.where}: client-certificate"
    chain = read_pem(where, user.client_certificate, user.client_certificate_data)
    if chain is not None:
        key = read_pem(f"{user.where}: client-key", user.client_key, user.client_key_data) or b""
        certificate = ClientCertificate(chain, key, where=f"{where} and client-key")
        identity = replace(identity, certificate=certificate)
    return identity


def _authorization(user: User) -> str | None:
    """Return the header with the token or with user name and password, if the user has them."""
    if user.token_file:
        where, content = f"{user.where}: tokenFile {user.token_file}", b""
        # As in client-go: `token` is for the time at which the file cannot be read or is empty.
        with suppress(ConfigurationError) if user.token else nullcontext():
            content = read_file(user.token_file, where)
        if content.strip() or not user.token:
            return bearer(content.decode("utf-8", "replace"), where)
    if user.token:
        return bearer(user.token, f"{user.where}: token")
    if user.username:  # RFC 7617
        return "Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode("ascii")
    return None


def _identity_of_provider(user: User) -> Identity:
    """Return the token of the auth-provider `oidc`, which older kubeconfigs have instead of a plugin.

    An expired token is not refreshed: issuers accept a refresh token once, and the new one would have to be
    written to the user's kubeconfig, which is the task of kubectl.
    """
    provider = user.auth_provider
    assert provider is not None
    where, token = f"{user.where}, auth-provider {provider.name!r}", provider.config.get("id-token", "")
    if provider.name != "oidc":
        raise ConfigurationError(
            f"{where} is not supported, and not by kubectl since 1.26 either",
            hint="Replace it with an exec plugin (gke-gcloud-auth-plugin for gcp, kubelogin for azure).",
        )
    end = (jwt_claims(token) or {}).get("exp")
    expires = float(end) if isinstance(end, (int, float)) else None
    if not token or (expires is not None and expires <= time()):
        raise CredentialsError(
            f"{where}: its token {'has expired' if token else 'is missing'}",
            hint="Run any kubectl command, which gets and stores a new one.",
        )
    return Identity(authorization=bearer(token, f"{where}: its token"), expires=expires)


def read_pem(where: str, path: str, data: str) -> bytes | None:
    """Return the PEM text in the base64 text `data` or in the file `path`; None if neither is given."""
    if path and data:
        raise ConfigurationError(f"{where} is both a path and data", hint="Remove one of them.")
    if path:
        return read_file(path, f"{where} {path}")
    if not data:
        return None
    with suppress(binascii.Error, ValueError):  # ValueError: not ASCII
        return base64.b64decode("".join(data.split()), validate=True)
    raise ConfigurationError(
        f"{where}-data is not valid base64", hint="Encode the PEM file with `base64 -w0`."
    )


def read_file(path: str, where: str) -> bytes:
    """Return the content of a file; `where` describes it for messages."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: such as a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"{where} cannot be read: {reason}", hint="Check the path and its permissions."
        ) from error


def read_if_exists(path: str, where: str) -> bytes | None:
    """Return the content of a file; None if it does not exist.

    As in client-go, any other reason why it cannot be read (permissions, a file in place of a folder, or
    circular symbolic links) is an error: the file may exist.
    """
    try:
        return read_file(path, where)
    except ConfigurationError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


# Exec plugins


async def run_command(
    command: Sequence[str], *, env: Mapping[str, str], what: str, secrets: Collection[str] = ()
) -> bytes:
    """Return the standard output of `command`, after it has exited with code 0.

    It runs in its own session, without a terminal and with an empty standard input. If the call is cancelled,
    the command and every process of its group are killed before the cancellation continues.

    `what` describes the command in messages, without its arguments. A message quotes the standard error
    without the texts that the command was given: `secrets` and its arguments.
    """
    # Files, not pipes: a grandchild may keep a pipe open, and so delay the credentials until the deadline.
    with _open_file() as stdout, _open_file() as stderr:
        # A session of its own has a process group of its own, which `_terminate` reaches. The start is its
        # own task: a cancellation in the middle of it would leave a child process that no one kills.
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=dict(env),
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
            while process.returncode is None:
                with anyio.move_on_after(CHECK_INTERVAL):
                    await process.wait()
                if max(os.fstat(file.fileno()).st_size for file in (stdout, stderr)) > MAX_OUTPUT:
                    raise CredentialsError(f"{what} wrote more than {MAX_OUTPUT >> 20} MiB")
        except (OSError, ValueError) as error:  # ValueError: such as a null byte
            reason = getattr(error, "strerror", None) or type(error).__name__
            # Without its traceback, whose frames hold the arguments.
            raise CredentialsError(f"cannot start {what}: {reason}") from error.with_traceback(None)
        finally:
            await wait_until_done(asyncio.create_task(_terminate(starting)))
        if code := process.returncode:
            ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            values = {each.partition("=")[2] if each.startswith("-") else each for each in command[1:]}
            text = _without(_content(stderr).decode("utf-8", "replace"), {*secrets, *values})
            shown = _printable(text)[-MAX_QUOTED:] or "no message on its standard error"
            raise CredentialsError(f"{what} {ended}: {shown}")
        return _content(stdout)


def _without(text: str, secrets: Collection[str]) -> str:
    """Return `text` without `secrets`, and without each line of those that have several."""
    found = {part.strip() for secret in secrets for part in (secret, *secret.split("\n"))} - {""}
    # The longest first, because a secret may contain a shorter one.
    for secret in sorted(found, key=len, reverse=True):
        # A short one only where it is a whole word: removing `true` everywhere would reveal it.
        boundary = r"(?<!\w){}(?!\w)" if len(secret) < 6 else "{}"
        text = re.sub(boundary.format(re.escape(secret)), "(secret)", text)
    return text


def _open_file() -> IO[bytes]:
    """Return a new file that has no name: in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("output"), "w+b")
    return tempfile.TemporaryFile("w+b")


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


async def _terminate(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Wait until the child has started, and kill it and its process group unless it has exited."""
    await asyncio.wait([starting])
    if starting.exception() is not None:
        return
    process = starting.result()
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    with anyio.move_on_after(KILL_GRACE):
        await process.wait()


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text).strip()


class ExecCall(Confidential, frozen=True):
    """A plugin, and the text of its variable `KUBERNETES_EXEC_INFO`, which describes the cluster."""

    plugin: ExecPlugin
    info: str

    async def identity(self) -> Identity:
        """Run the plugin once and return the credentials that it prints."""
        plugin = self.plugin
        what = f"the plugin {os.path.basename(plugin.command)!r} ({plugin.where})"
        path = await run_in_thread(f"find {what}", _find_program, plugin.command, what, plugin.install_hint)
        variables = {variable.name: variable.value for variable in plugin.env}
        output = await run_command(
            [path, *plugin.args],
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": self.info},
            what=what,
            secrets=variables.values(),
        )
        return parse_exec_credential(output, plugin.api_version, what)


def exec_call(plugin: ExecPlugin, cluster: Cluster, authorities: bytes | None) -> ExecCall:
    """Return the call of `plugin` for `cluster`, whose CA certificates are `authorities`, as PEM."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        own_name = "client.authentication.k8s.io/exec"
        extensions = (item.get("extension") for item in cluster.extensions if item.get("name") == own_name)
        known = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": authorities,  # msgspec writes bytes as base64
            "proxy-url": cluster.proxy_url,
            "disable-compression": cluster.disable_compression,
            "config": next(extensions, None),
        }
        spec["cluster"] = {name: value for name, value in known.items() if value}
    info = msgspec.json.encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec})
    return ExecCall(plugin, info.decode())


class ExecStatus(Confidential, frozen=True, rename="camel"):
    """The credentials in the output of a plugin."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class ExecCredential(Confidential, frozen=True, rename="camel"):
    """The output of a plugin."""

    api_version: str = ""
    kind: str = ""
    status: ExecStatus = ExecStatus()


def parse_exec_credential(output: bytes, api_version: str, what: str) -> Identity:
    """Return the credentials in the output of a plugin, an ExecCredential. No message shows the output.

    As for client-go, it is JSON or YAML, and may lack its kind.
    """
    try:
        found = msgspec.convert(parse_document(output), ExecCredential)
    except ValueError as error:
        raise CredentialsError(
            f"{what} printed {len(output)} bytes that are not an ExecCredential: {str(error).lstrip(': ')}",
            hint="Run it in a shell to see its output.",
        ) from None  # the error of the parser quotes it
    if found.api_version != api_version or found.kind not in ("", "ExecCredential"):
        raise CredentialsError(
            f"{what} printed no ExecCredential of {api_version}, which the kubeconfig requires",
            hint="Upgrade the plugin, or set the apiVersion that it prints in the kubeconfig.",
        )
    status, certificate = found.status, None
    chain, key, end = status.client_certificate_data, status.client_key_data, status.expiration_timestamp
    if bool(chain) != bool(key) or not (chain or status.token):
        raise CredentialsError(
            f"{what} returned neither a token nor both clientCertificateData and clientKeyData",
            hint="Run it in a shell to see its output.",
        )
    if chain:
        where = f"the client certificate of {what}"
        certificate = ClientCertificate(chain.encode(), key.encode(), where=where)
    return Identity(
        authorization=bearer(status.token, f"the token of {what}") if status.token else None,
        certificate=certificate,
        # Plugins written in Go print the year 1 if the credentials do not expire.
        expires=None if end is None or end.year == 1 else end.timestamp(),
    )


def _find_program(command: str, what: str, install_hint: str) -> str:
    """Return the absolute path of a command. Blocking: for worker threads."""
    path = shutil.which(command)
    if path is not None and os.path.isabs(path):
        return path
    if path is not None:
        # As in Go: the current folder may contain files of others, such as a cloned repository.
        raise CredentialsError(
            f"{what} was found only in a folder of PATH that is not absolute, so in the current folder",
            hint="Remove `.` and empty entries from PATH, or write the full path of the command.",
        )
    reason = "there is no such program" if os.path.dirname(command) else "it is not on PATH"
    # The text is the plugin's and may contain braces, which have a meaning in a hint.
    hint = Hint("{hint}", {"hint": _printable(install_hint) or "Install it, or correct the command."})
    raise CredentialsError(f"{what} is not installed: {reason}", hint=hint)
