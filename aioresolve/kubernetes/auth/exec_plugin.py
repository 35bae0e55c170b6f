"""Exec plugins: commands, named in a kubeconfig, that print credentials.

Protocol: `client.authentication.k8s.io/v1` and `v1beta1`,
https://kubernetes.io/docs/reference/config-api/client-authentication.v1/.

`kubernetes_asyncio.config` is not used to run plugins. It reads one pipe after the other, which deadlocks
with a plugin that writes much to its standard error; it leaves the plugin running when it is cancelled; it
drops a client certificate that comes with a token; and it writes a certificate without a token, with its key,
to files that exist until the process exits.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from aioresolve._core.redaction import Confidential, redact
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import CredentialsError, Hint

from .connection import ClientCertificate, Identity, bearer, unix_time
from .kubeconfig import parse_json, parse_yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from .kubeconfig import Cluster, ExecPlugin

MAX_STDOUT = 1024 * 1024
"""The largest standard output that is accepted, in bytes; credentials take a few KB."""

MAX_YAML = 64 * 1024
"""The largest standard output that is parsed as YAML, in bytes; that takes much longer than JSON."""

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
    # deadline. The start is its own task: a cancellation in the middle of it, even one by asyncio, would
    # leave a child process that no one kills.
    starting = asyncio.ensure_future(_start(command, env))
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
        with anyio.CancelScope(shield=True):
            await _finish(asyncio.ensure_future(_terminate(starting)))
    if child.overflowed:
        raise CredentialsError(f"{what} wrote more than {MAX_STDOUT >> 20} MiB to its standard output")
    if (code := transport.get_returncode()) != 0:
        message = _stderr_text(child, {*secrets, *_argument_values(command[1:])})
        raise CredentialsError(f"{what} {_exit_text(code)}{message}")
    return bytes(child.stdout)


async def _start(
    command: Sequence[str], env: Mapping[str, str]
) -> tuple[asyncio.SubprocessTransport, _Child]:
    # In a session, and so a process group, of its own: `_kill` then reaches the processes that it starts.
    return await asyncio.get_running_loop().subprocess_exec(
        _Child, *command, stdin=subprocess.DEVNULL, env=dict(env), start_new_session=True
    )


async def _finish(cleanup: asyncio.Future[None]) -> None:
    """Wait for `cleanup`, which is short, even if asyncio cancels the caller repeatedly."""
    cancellation = None
    while not cleanup.done():
        try:
            await asyncio.shield(cleanup)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def _terminate(starting: asyncio.Future[tuple[asyncio.SubprocessTransport, _Child]]) -> None:
    """Wait until the child has started, and kill it unless it has exited."""
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


def _argument_values(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the arguments, and of options such as `--token=VALUE` the value."""
    for argument in arguments:
        yield argument.partition("=")[2] if argument.startswith("-") else argument


def _stderr_text(child: _Child, secrets: Collection[str]) -> str:
    """Return the end of the standard error for a message."""
    text = redact(_ANSI.sub("", child.stderr.decode("utf-8", "replace")), secrets)
    text = "".join(char if char.isprintable() or char == "\n" else " " for char in text).strip()
    return f": {text[-MAX_QUOTED:]}" if text else ", without a message on its standard error"


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
        path = await run_in_thread(f"find {what}", find_program, plugin.command, what, plugin.install_hint)
        output = await run_command(
            [path, *plugin.args],
            env={**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": self.info},
            what=what,
            secrets=[value for _, value in plugin.env],
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
    credential = _parse_document(output)
    if credential is None:
        raise CredentialsError(
            f"{what} printed {len(output)} bytes that are neither a JSON nor a YAML object",
            hint="It must print an ExecCredential; run it in a shell to see its output.",
        )
    for name, expected in (("apiVersion", api_version), ("kind", "ExecCredential")):
        if (credential.get(name) or ("ExecCredential" if name == "kind" else None)) != expected:
            raise CredentialsError(
                f"{what} printed a {name} other than {expected}, which the kubeconfig requires",
                hint="Upgrade the plugin, or set the apiVersion that it prints in the kubeconfig.",
            )
    if not isinstance(credential.get("status"), dict):
        raise CredentialsError(f"{what} printed an ExecCredential without status, and so no credentials")
    status = credential["status"]
    token = _text(status, "token", what)
    chain, key = _text(status, "clientCertificateData", what), _text(status, "clientKeyData", what)
    if not token and not chain and not key:
        raise CredentialsError(f"{what} returned neither a token nor a client certificate")
    if bool(chain) != bool(key):
        raise CredentialsError(
            f"{what} returned only one of clientCertificateData and clientKeyData, which belong together"
        )
    return Identity(
        authorization=bearer(token, f"the token of {what}") if token else None,
        certificate=ClientCertificate(chain.encode(), key.encode(), where=f"the client certificate of {what}")
        if chain
        else None,
        expires=unix_time(_text(status, "expirationTimestamp", what), f"the expirationTimestamp of {what}"),
    )


def _parse_document(output: bytes) -> dict[str, Any] | None:
    """Return a JSON or YAML object; None if `output` is something else."""
    value = None
    if output.lstrip().startswith(b"{"):
        value = parse_json(output)
    elif len(output) <= MAX_YAML:
        import yaml

        with suppress(yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            value = parse_yaml(output.decode("utf-8-sig"))
    return value if isinstance(value, dict) else None


def find_program(command: str, what: str, install_hint: str | None = None) -> str:
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
    hint = "".join(char for char in install_hint or "" if char.isprintable() or char == "\n").strip()
    raise CredentialsError(
        f"{what} is not installed: {reason}",
        # The text is the plugin's and may contain braces, which have a meaning in a hint.
        hint=Hint("{hint}", {"hint": hint}) if hint else "Install it, or correct the command.",
    )


def _text(status: dict[str, Any], name: str, what: str) -> str:
    if not isinstance(status.get(name), (str, datetime, type(None))):
        raise CredentialsError(f"{what} returned a {name} that is not a string")
    value = status.get(name) or ""
    return value.isoformat() if isinstance(value, datetime) else value  # unquoted in YAML
