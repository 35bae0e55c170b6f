"""What a command printed: a child process, both its pipes drained, its output bounded, gone when cancelled.

asyncio's subprocess protocol is used because `Process.wait()`, asyncio's and with it anyio's before 4.14,
waits until every pipe is closed: a grandchild that inherited one would hold the credentials up until the
deadline.

Exec plugins: a command of the kubeconfig prints our credentials.

Protocol: `client.authentication.k8s.io/v1` and `v1beta1`,
https://kubernetes.io/docs/reference/config-api/client-authentication.v1/.

The plugins are run here and not by `kubernetes_asyncio.config`: its reader reads one pipe after the other, so
that it and a plugin that says much on its standard error wait for each other for ever; it leaves the plugin
running when it is cancelled; and it drops a client certificate that comes with a token, and writes one
that comes alone, with its key, to files that stay until the process exits.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from aioresolve._core.yaml_document import parse_json
from aioresolve.errors import ConfigurationError, CredentialsError

from .identity import ClientCertificate, Identity, bearer, unix_time

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .kubeconfig import Cluster, ExecPlugin

__all__ = ["ExecCall", "exec_call", "identity_in", "output_of"]

MAX_STDOUT = 1024 * 1024
"""Bytes of standard output; credentials are a few KB."""

MAX_STDERR = 64 * 1024
"""Bytes of standard error that are kept, the last ones."""

MAX_QUOTED = 2000
"""Characters of it that a message shows, the last ones."""

EOF_GRACE = 0.1
"""Seconds after the command's end for its pipes to end too.

What it wrote is in the pipes by then and the loop reads it at its next turn; only a grandchild that holds
a pipe open uses the time up.
"""

KILL_GRACE = 5.0
"""Seconds for a killed process to be gone; it takes milliseconds unless it hangs in the kernel."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORDS = re.compile(r"[\w.~+/=-]{16,}")
_SECRETS = re.compile(
    r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END [^-]*-----|\Z)"
    r"|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
    r"|k8s-aws-v1\.\S+|ya29\.\S+"
    r"|(?i:(?<=bearer )|(?<=basic ))\S+",
    re.DOTALL,
)


async def output_of(
    command: Sequence[str], *, env: Mapping[str, str], what: str, secrets: Collection[str] = ()
) -> bytes:
    """Return what `command` wrote to its standard output, once it has ended with exit code 0.

    It runs in a session of its own, without a terminal and with an empty standard input. When the call is
    cancelled, the command and every process of its group are killed before the cancellation goes on.

    Args:
        command: the path of a program, and its arguments.
        env: all of its environment.
        what: the command in words, for messages; its arguments may hold secrets.
        secrets: texts that are blanked out where the command's standard error is shown.

    Raises:
        CredentialsError: it could not be started, ended with another exit code, or wrote more than 1 MiB.
    """
    # The start is a task of its own: a cancellation that came in the middle of it, even asyncio's own, would
    # leave a child that nobody knows.
    starting = asyncio.ensure_future(_started(command, env))
    try:
        transport, child = await asyncio.shield(starting)
        await child.done.wait()
        if not child.overflowed:
            with anyio.move_on_after(EOF_GRACE):
                await child.pipes_closed.wait()
    except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CredentialsError(f"{what} could not be started: {reason}") from error
    finally:
        with anyio.CancelScope(shield=True):
            await _ended(asyncio.ensure_future(_end(starting)))
    if child.overflowed:
        raise CredentialsError(f"{what} wrote more than {MAX_STDOUT >> 20} MiB to its standard output")
    if (code := transport.get_returncode()) != 0:
        raise CredentialsError(f"{what} {_ending(code)}{_quoted(child, secrets)}")
    return bytes(child.stdout)


async def _started(
    command: Sequence[str], env: Mapping[str, str]
) -> tuple[asyncio.SubprocessTransport, _Child]:
    return await asyncio.get_running_loop().subprocess_exec(
        _Child, *command, stdin=subprocess.DEVNULL, env=dict(env), start_new_session=True
    )


async def _ended(ending: asyncio.Future[None]) -> None:
    """Wait for `ending`, which takes a moment, however often asyncio cancels its caller meanwhile."""
    cancellation = None
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def _end(starting: asyncio.Future[tuple[asyncio.SubprocessTransport, _Child]]) -> None:
    """Wait until the child is known, and then until it is gone, which it is at once."""
    await asyncio.wait([starting])
    if starting.cancelled() or starting.exception() is not None:
        return
    transport, child = starting.result()
    if transport.get_returncode() is None:
        _kill(transport)
        with anyio.move_on_after(KILL_GRACE):
            await child.exited.wait()
    transport.close()


class _Child(asyncio.SubprocessProtocol):
    """What came out of one child process so far.

    Attributes:
        done: it has exited, or wrote too much to be waited for.
        exited: it has exited.
        pipes_closed: nobody holds its standard output or error any more.
    """

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.overflowed = False
        self.done = asyncio.Event()
        self.exited = asyncio.Event()
        self.pipes_closed = asyncio.Event()
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
    """Kill the child and its group with SIGKILL, which none can ignore."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            transport.kill()
        else:
            os.killpg(transport.get_pid(), signal.SIGKILL)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _quoted(child: _Child, secrets: Collection[str]) -> str:
    """Return the end of the standard error as part of a message, with what may be a secret blanked out."""
    text = child.stderr.decode("utf-8", "replace")
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 6:  # shorter ones are words such as "true", and blanking those tells what they are
            text = text.replace(secret, "(secret)")
    # The standard output holds credentials, and some commands repeat it on their standard error.
    printed = child.stdout.decode("utf-8", "replace")
    text = _WORDS.sub(lambda word: "(secret)" if word[0] in printed else word[0], text)
    text = _ANSI.sub("", _SECRETS.sub("(secret)", text))
    text = "".join(char if char.isprintable() or char == "\n" else " " for char in text).strip()
    return f", saying: {text[-MAX_QUOTED:]}" if text else ", saying nothing on its standard error"


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
    credential = parse_json(printed)
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
