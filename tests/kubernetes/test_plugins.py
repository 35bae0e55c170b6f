"""Exec plugins: their input, their output, how long it is used, and no processes left behind."""

import asyncio
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest
import trustme

from aioresolve.errors import CredentialsError, DeadlineExceededError, ResolveError
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.kubernetes.auth import Connection, CredentialCache

from .kubeconfigs import (
    EXEC_V1,
    SERVER,
    base64_of,
    bearer_of,
    client_pair,
    connect,
    exec_user,
    headers_of,
    isolate,
    kubeconfig,
    renew,
    runs_of,
    write_file,
    write_plugin,
)

pytestmark = pytest.mark.usefixtures("no_leak")

EXEC_V1BETA1 = "client.authentication.k8s.io/v1beta1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(tmp_path, monkeypatch)
    return tmp_path


async def connect_with(folder: Path, code: str, *, cluster: Any = None, **fields: Any) -> Connection:
    """Return a connection whose plugin runs `code`."""
    user = exec_user(write_plugin(folder, code), **fields)
    return await connect(write_file(folder / "config", kubeconfig(user, **(cluster or {}))))


async def token_from(folder: Path, code: str, **options: Any) -> str | None:
    with anyio.fail_after(60):
        return await bearer_of(await connect_with(folder, code, **options))


async def failure(folder: Path, code: str, **options: Any) -> str:
    """Return the message for a plugin that fails, after the description of the plugin."""
    with pytest.raises(ResolveError) as caught:
        await token_from(folder, code, **options)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__context__)
    assert "hunter22" not in shown
    plugin = f"the plugin 'plugin' (kubeconfig {folder}/config, user 'dev', exec)"
    assert plugin in str(caught.value)
    return str(caught.value).replace(plugin, "it")


# What the plugin prints


def printing(status: Any, **fields: Any) -> str:
    credential = {"apiVersion": EXEC_V1, "kind": "ExecCredential", "status": status, **fields}
    return f"print({json.dumps(credential)!r})"


async def test_certificate_and_token_may_be_combined_and_expire(folder: Path) -> None:
    chain, key = client_pair(trustme.CA())
    parts = {"clientCertificateData": chain.decode(), "clientKeyData": key.decode(), "token": "t"}
    for timestamp, expires in (
        ("2030-01-31T13:00:00+01:00", 1896091200),
        ("2030-01-31T12:00:00.000000000Z", 1896091200),
        ("0001-01-01T00:00:00Z", None),  # the zero time of Go
    ):
        code = printing({**parts, "expirationTimestamp": timestamp})
        identity = await (await connect_with(folder, code)).identity()
        assert identity.certificate is not None
        assert (identity.headers, identity.certificate.chain) == ({"Authorization": "Bearer t"}, chain)
        assert identity.expires == expires


async def test_invalid_output_is_an_error_that_does_not_show_it(folder: Path) -> None:
    of_another = f"printed no ExecCredential of {EXEC_V1}"
    for code, expected in (
        ("print('hunter22')", "printed 9 bytes that are not an ExecCredential: Expected `object`, got `str`"),
        ("sys.stdout.buffer.write(bytes([255, 254, 253]))", "not an ExecCredential: not valid YAML"),
        ("print('token: hunter22')", of_another),
        (printing({"token": "hunter22"}, apiVersion=EXEC_V1BETA1), of_another),
        (printing({"token": "hunter22"}, kind="Token"), of_another),
        (printing({"token": ""}), "neither a token nor both clientCertificateData and"),
        (printing({"token": 5}), "Expected `str`, got `int` - at `$.status.token`"),
        (printing({"token": "hunter22 x"}), "contains a line break, a space"),
        (printing({"clientKeyData": "hunter22"}), "neither a token nor both clientCertificateData and"),
        (
            printing({"token": "hunter22", "expirationTimestamp": "2030-01-31T12:00:00"}),
            "expirationTimestamp`",
        ),
    ):
        assert expected in await failure(folder, code)


async def test_output_may_be_yaml_of_which_the_first_document_is_read(folder: Path) -> None:
    output = f"""apiVersion: {EXEC_V1}
status: {{token: t, expirationTimestamp: 2030-01-31T12:00:00Z}}
---
x: 1
"""
    connection = await connect_with(folder, f"print({output!r})")
    assert (await bearer_of(connection), (await connection.identity()).expires) == ("t", 1896091200)


# The input of the plugin


async def test_plugin_gets_arguments_variables_and_the_cluster_but_no_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    authority = base64_of(trustme.CA().cert_pem.bytes())
    cluster = {
        "tls-server-name": "api.example",
        "certificate-authority-data": authority,
        "proxy-url": "http://proxy:3128",
        "disable-compression": True,
        "extensions": [{"name": []}, {"name": "client.authentication.k8s.io/exec", "extension": {"a": "b"}}],
    }
    code = f"""
try:
    open("/dev/tty")
except OSError:
    received = [sys.argv[1:], os.environ["GIVEN"], os.environ["INHERITED"], sys.stdin.read()]
    received.append(json.loads(os.environ["KUBERNETES_EXEC_INFO"]))
    open({str(folder / "received")!r}, "w").write(json.dumps(received))
    credential({{"token": "t"}}, api_version={EXEC_V1BETA1!r})
"""
    options = {"apiVersion": EXEC_V1BETA1, "args": ["a", "b"], "provideClusterInfo": True}
    monkeypatch.delattr(os, "memfd_create", raising=False)  # as on macOS
    await token_from(folder, code, cluster=cluster, env=[{"name": "GIVEN", "value": "g"}], **options)
    *received, info = json.loads((folder / "received").read_text())
    assert received == [["a", "b"], "g", "yes", ""]
    assert info == {
        "apiVersion": EXEC_V1BETA1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": SERVER,
                "tls-server-name": "api.example",
                "certificate-authority-data": authority,
                "proxy-url": "http://proxy:3128",
                "disable-compression": True,
                "config": {"a": "b"},
            },
        },
    }


# Finding the command


async def test_command_in_a_relative_folder_of_path_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bin").mkdir()
    monkeypatch.chdir(folder)
    config = write_file(folder / "config", kubeconfig(exec_user("my-login")))
    original = os.environ["PATH"]
    for entry in ("", "bin"):
        path = write_plugin(folder / entry, 'credential({"token": "t"})', "my-login")
        monkeypatch.setenv("PATH", f"/nothing:{entry}:{original}")
        with pytest.raises(CredentialsError, match="in a folder of PATH that is not absolute"):
            await bearer_of(await connect(config))
        assert not runs_of(path)
        path.unlink()


async def test_error_for_a_missing_command_has_its_install_hint(folder: Path) -> None:
    hint = "Get it:\n\x1b[1mhttps://example.com/{x}"
    for command, install_hint, expected in (
        ("my-login", hint, "it is not on PATH. Get it:\n [1mhttps://example.com/{x}"),
        (str(folder / "my-login"), None, "there is no such program. Install it, or correct the command."),
    ):
        user = exec_user(command, installHint=install_hint)
        connection = await connect(write_file(folder / "config", kubeconfig(user)))
        with pytest.raises(CredentialsError) as caught:
            await headers_of(connection)
        where = f"kubeconfig {folder}/config, user 'dev', exec"
        assert str(caught.value) == f"the plugin 'my-login' ({where}) is not installed: {expected}"
    write_file(folder / "my-login", "#!/no/such/interpreter").chmod(0o755)
    with pytest.raises(CredentialsError, match=r"^cannot start the plugin 'my-login' .*: No such file"):
        await headers_of(connection)


# Failures


async def test_error_shows_exit_code_and_the_end_of_standard_error_but_never_the_output(folder: Path) -> None:
    code = "print('hunter22'); sys.stderr.write('expired:\\tlog in'); sys.exit(3)"
    assert await failure(folder, code) == "it exited with code 3: expired: log in"
    none = "no message on its standard error"
    assert await failure(folder, "os.kill(os.getpid(), 9)") == f"it was killed by SIGKILL: {none}"
    message = await failure(folder, "sys.stderr.write('x ' * 50_000 + 'the end'); sys.exit(1)")
    assert message.endswith("the end")
    assert len(message) < 2200


async def test_what_the_command_was_given_is_removed_from_its_standard_error(folder: Path) -> None:
    message = await failure(
        folder,
        "sys.exit('hunter221, hunter222, hunter223, abc and abcd: --region not found')",
        args=["hunter221", "--token=hunter222", "--region"],
        env=[{"name": "A", "value": "hunter223"}, {"name": "B", "value": "abc"}],
    )
    assert message == (
        "it exited with code 1: (secret), (secret), (secret), (secret) and abcd: --region not found"
    )
    nested = [{"name": "A", "value": "harbor"}, {"name": "B", "value": "harbor-of-ada"}]
    assert await failure(folder, "sys.exit('harbor-of-ada, harbors')", env=nested) == (
        "it exited with code 1: (secret), (secret)s"
    )


# Processes


@pytest.fixture
def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


async def read_pids(fifo: Path) -> list[int]:
    """Return the process ids that a plugin writes to `fifo`."""
    with anyio.fail_after(60):
        text = await anyio.to_thread.run_sync(fifo.read_text, abandon_on_cancel=True)
    return [int(word) for word in text.split()]


async def wait_for_exit(pid: int) -> None:
    """Wait until the process has exited; an orphan of another process may remain unreaped for a while."""
    with anyio.fail_after(60):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_command_that_writes_too_much_is_killed(folder: Path, fifo: Path) -> None:
    code = f"""
open({str(fifo)!r}, "w").write(str(os.getpid()))
while True:
    sys.stdout.write("x" * 65536)
"""
    message, [pid] = await asyncio.gather(failure(folder, code), read_pids(fifo))
    assert "wrote more than 16 MiB" in message
    assert not psutil.pid_exists(pid)


WAIT = "import signal; signal.pause()"


async def test_cancelled_command_is_killed_with_its_children_although_it_ignores_signals(
    folder: Path, fifo: Path
) -> None:
    code = f"""
import signal, subprocess
for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", {WAIT!r}])
open({str(fifo)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
while True:
    signal.pause()
"""
    task = asyncio.create_task(token_from(folder, code))
    own, child = await read_pids(fifo)
    before = time.monotonic()
    task.cancel()
    await asyncio.wait([task])
    assert time.monotonic() - before < 20
    assert not psutil.pid_exists(own)
    await wait_for_exit(child)


async def test_grandchild_with_open_output_does_not_block(folder: Path, fifo: Path) -> None:
    """A plugin may leave a helper running, such as an agent that caches logins."""
    code = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-S", "-c", {WAIT!r}])
{printing({"token": "t" * 60_000})}
sys.stdout.flush()
open({str(fifo)!r}, "w").write(str(child.pid))
"""
    token, [pid] = await asyncio.gather(token_from(folder, code), read_pids(fifo))
    assert token == "t" * 60_000
    psutil.Process(pid).kill()
    await wait_for_exit(pid)


async def test_plugin_gets_the_cluster_only_if_it_is_to(folder: Path) -> None:
    code = """spec = json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"]
credential({"token": "-".join(["has", *spec.get("cluster", {})])})"""
    assert await token_from(folder, code) == "has"
    assert await token_from(folder, code, provideClusterInfo=True) == "has-server"


# How long the credentials are used


async def test_plugin_runs_once_for_all_connections_and_only_when_its_credentials_are_needed(
    folder: Path,
) -> None:
    path = write_plugin(folder, 'credential({"token": f"t{runs}"})')
    config = write_file(folder / "config", kubeconfig(exec_user(path)))
    cache = CredentialCache()
    connection = await connect(config, cache=cache)
    assert runs_of(path) == 0
    assert [await bearer_of(one) for one in (connection, connection)] == ["t1", "t1"]
    assert await bearer_of(await connect(config, cache=cache)) == "t1"
    write_file(config, kubeconfig(exec_user(path, args=["other"])))
    assert await bearer_of(await connect(config, cache=cache)) == "t2"
    assert await bearer_of(await connect(config, cache=CredentialCache())) == "t3"


async def test_plugin_runs_again_when_its_credentials_expire(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'credential({"token": f"t{runs}", "expirationTimestamp": f"{1950 + runs * 50}-01-01T00:00:00Z"})'
    connection = await connect_with(folder, code)
    assert await bearer_of(connection) == "t1"
    later = time.monotonic() + 10.0
    monkeypatch.setattr("aioresolve._core.secrets.monotonic", lambda: later)
    assert [await bearer_of(connection) for _ in range(2)] == ["t2", "t2"]


async def test_plugin_runs_again_once_its_credentials_are_rejected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await connect_with(folder, 'credential({"token": f"t{runs}"})')
    assert await bearer_of(connection) == "t1"
    later = time.monotonic() + 10.0
    monkeypatch.setattr("aioresolve._core.secrets.monotonic", lambda: later)
    assert await renew(connection)
    assert await bearer_of(connection) == "t2"


async def test_error_at_the_deadline_names_the_credentials_that_are_waited_for(folder: Path) -> None:
    path = write_file(folder / "config", kubeconfig(exec_user(write_plugin(folder, "time.sleep(600)"))))
    resolver = KubernetesClusterResolver({"worker": ["app=t"]}, kubeconfig=path)
    with pytest.raises(DeadlineExceededError) as caught:
        await resolver.cluster_spec(timeout=0.5)
    [(scope, reason)] = caught.value.missing.items()
    assert (scope, caught.value.reached) == ("selector 'app=t' in all namespaces", {})
    assert "the credentials of kubeconfig" in reason
