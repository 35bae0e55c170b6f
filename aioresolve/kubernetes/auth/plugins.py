"""Credentials that others provide: exec plugins, and the auth-provider `oidc` from before they existed.

An exec plugin is a command, named in a kubeconfig, that prints credentials. Protocol:
`client.authentication.k8s.io/v1` and `v1beta1`,
https://kubernetes.io/docs/reference/config-api/client-authentication.v1/.

`kubernetes_asyncio.config` is not used. It reads one pipe of a plugin after the other, which deadlocks with a
plugin that writes much to its standard error; it leaves the plugin running when it is cancelled; it drops a
client certificate that comes with a token; and it refreshes an OIDC token without verifying the server.

An expired OIDC token is not refreshed here: issuers accept a refresh token once, and the new one would have
to be written to the user's kubeconfig, which is the task of kubectl.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from aioresolve._core.concurrency import wait_until_done
from aioresolve._core.redaction import Confidential, redact
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError, CredentialsError, Hint

from .connection import Identity, bearer, jwt_claims, unix_time
from .kubeconfig import parse_document
from .tls import ClientCertificate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .kubeconfig import AuthProvider, Cluster, ExecPlugin

MAX_STDOUT = 256 * 1024
"""The largest standard output that is accepted, in bytes; credentials take a few KB."""

MAX_STDERR = 64 * 1024
"""Bytes of standard error that are kept, from its end."""

MAX_QUOTED = 2000
"""Characters of standard error that a message shows, from its end."""

EOF_GRACE = 0.1
"""Seconds to wait for the end of the pipes after the command has exited.

Its output is in the pipes by then, and the event loop reads it in its next iteration; only a grandchild that
keeps a pipe open uses all of this time.
"""

KILL_GRACE = 5.0
"""Seconds to wait for the exit of a killed process; it takes milliseconds unless the kernel hangs."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


async def run_command(
    command: Sequence[str], *, env: Mapping[str, str], what: str, secrets: Collection[str] = ()
) -> bytes:
    """Return the standard output of `command`, after it has exited with code 0.

    It runs in its own session, without a terminal and with an empty standard input. If the call is cancelled,
    the command and every process of its group are killed before the cancellation continues.

    `what` describes the command in messages, without its arguments. A message quotes the standard error
    without the texts that the command was given: `secrets` and its arguments.
    """
    # asyncio's subprocess protocol, because `Process.wait()` of asyncio, and of anyio before 4.14, waits
    # until every pipe is closed: a grandchild that inherited one would delay the credentials until the
    # deadline. A session of its own has a process group of its own, which `_kill` reaches. The start is its
    # own task: a cancellation in the middle of it would leave a child process that no one kills.
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            _Child, *command, stdin=subprocess.DEVNULL, env=dict(env), start_new_session=True
        )
    )
    try:
        transport, child = await asyncio.shield(starting)
        await child.done.wait()
        if not child.overflowed:
            with anyio.move_on_after(EOF_GRACE):
                await child.pipes_closed.wait()
    except (OSError, ValueError) as error:  # ValueError: such as a null byte
        reason = getattr(error, "strerror", None) or type(error).__name__
        # Without its traceback, whose frames hold the arguments.
        raise CredentialsError(f"cannot start {what}: {reason}") from error.with_traceback(None)
    finally:
        await wait_until_done(asyncio.create_task(_terminate(starting)))
    if child.overflowed:
        raise CredentialsError(f"{what} wrote more than {MAX_STDOUT >> 10} KiB to its standard output")
    if (code := transport.get_returncode()) != 0:
        values = {each.partition("=")[2] if each.startswith("-") else each for each in command[1:]}
        message = _stderr_text(child, {*secrets, *values})
        raise CredentialsError(f"{what} {_exit_text(code)}{message}")
    return bytes(child.stdout)


async def _terminate(starting: asyncio.Future[tuple[asyncio.SubprocessTransport, _Child]]) -> None:
    """Wait until the child has started, and kill it unless it has exited."""
    await asyncio.wait([starting])
    if starting.exception() is not None:
        return
    transport, child = starting.result()
    if transport.get_returncode() is None:
        _kill(transport)
        with anyio.move_on_after(KILL_GRACE):
            await child.exited.wait()
    transport.close()


class _Child(asyncio.SubprocessProtocol):
    """The output of a child process so far."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.overflowed = False
        self.done = asyncio.Event()  # it has exited or written too much
        self.exited = asyncio.Event()
        self.pipes_closed = asyncio.Event()  # no process, also none it started, has its output open
        self._open_pipes = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.stderr += data
            del self.stderr[:-MAX_STDERR]
        elif len(self.stdout) + len(data) > MAX_STDOUT:
            self.overflowed = True
            self.done.set()
        else:
            self.stdout += data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self.pipes_closed.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.done.set()


def _kill(transport: asyncio.SubprocessTransport) -> None:
    """Kill the child and its process group with SIGKILL, which cannot be ignored."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            transport.kill()
        else:
            os.killpg(transport.get_pid(), signal.SIGKILL)


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def _stderr_text(child: _Child, secrets: Collection[str]) -> str:
    """Return the end of the standard error for a message."""
    text = _printable(redact(_ANSI.sub("", child.stderr.decode("utf-8", "replace")), secrets))
    return f": {text[-MAX_QUOTED:]}" if text else ", without a message on its standard error"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text).strip()


class ExecCall(Confidential, frozen=True):
    """A plugin, and the text of its variable `KUBERNETES_EXEC_INFO`, which describes the cluster."""

    plugin: ExecPlugin
    info: str

    @property
    def key(self) -> str:
        """The kubeconfig entry that the credentials belong to."""
        return self.plugin.where

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
    info = msgspec.json.encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec})
    return ExecCall(plugin, info.decode())


def parse_exec_credential(output: bytes, api_version: str, what: str) -> Identity:
    """Return the credentials in the output of a plugin, an ExecCredential. No message shows the output.

    As for client-go, it is JSON or YAML, and may lack its kind.
    """
    credential = None
    with suppress(ValueError):
        credential = parse_document(output)
    if not isinstance(credential, dict):
        raise CredentialsError(
            f"{what} printed {len(output)} bytes that are neither a JSON nor a YAML object",
            hint="It must print an ExecCredential; run it in a shell to see its output.",
        )
    found = credential.get("apiVersion"), credential.get("kind") or "ExecCredential"
    if found != (api_version, "ExecCredential"):
        raise CredentialsError(
            f"{what} printed no ExecCredential of {api_version}, which the kubeconfig requires",
            hint="Upgrade the plugin, or set the apiVersion that it prints in the kubeconfig.",
        )
    status = credential.get("status")
    names = ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")
    values = [status.get(name) or "" for name in names] if isinstance(status, dict) else [""] * 4
    # YAML reads a time without quotes as a time.
    texts = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    if not all(isinstance(text, str) for text in texts):
        raise CredentialsError(f"{what} printed a {' or '.join(names)} that is not a string")
    token, chain, key, end = texts
    if bool(chain) != bool(key):
        raise CredentialsError(
            f"{what} returned only one of clientCertificateData and clientKeyData, which belong together"
        )
    if not token and not chain:
        raise CredentialsError(f"{what} returned neither a token nor a client certificate")
    certificate = None
    if chain:
        where = f"the client certificate of {what}"
        certificate = ClientCertificate(chain.encode(), key.encode(), where=where)
    return Identity(
        authorization=bearer(token, f"the token of {what}") if token else None,
        certificate=certificate,
        expires=unix_time(end, f"the expirationTimestamp of {what}"),
    )


def _find_program(command: str, what: str, install_hint: str) -> str:
    """Return the absolute path of a command. Blocking: for worker threads."""
    import shutil

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


def identity_of(provider: AuthProvider, where: str) -> Identity:
    """Return the credentials of an auth-provider; `where` describes it for messages."""
    if provider.name != "oidc":
        raise ConfigurationError(
            f"{where} is not supported, and not by kubectl since 1.26 either",
            hint="Replace it with an exec plugin (gke-gcloud-auth-plugin for gcp, kubelogin for azure).",
        )
    token = provider.config.get("id-token", "")
    claims = jwt_claims(token)
    if token and claims is None:
        raise ConfigurationError(f"{where}: its id-token is not a JSON Web Token", hint="Log in again.")
    end = None if claims is None else claims.get("exp")
    expires = float(end) if isinstance(end, (int, float)) else None
    if not token or (expires is not None and expires <= time.time()):
        raise CredentialsError(
            f"{where}: its token {'has expired' if token else 'is missing'}",
            hint="Run any kubectl command, which gets and stores a new one.",
        )
    return Identity(authorization=bearer(token, f"{where}: its token"), expires=expires)
