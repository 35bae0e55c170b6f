"""Discovery: the sources of an API server and its credentials, and the service account of a pod."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

from aioresolve.errors import ConfigurationError, CredentialsError, DeadlineExceededError
from aioresolve.kubernetes import ExecutableLocation, KubernetesClusterResolver

from .kubeconfigs import (
    SERVER,
    base64_of,
    bearer_of,
    connect,
    context_of,
    exec_user,
    headers_of,
    isolate,
    kubeconfig,
    renew,
    write_file,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder."""
    return isolate(tmp_path, monkeypatch)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the service account of the pod that the test runs in."""
    folder = tmp_path / "serviceaccount"
    write_file(folder / "token", "pod-token\n")
    write_file(folder / "ca.crt", trustme.CA().cert_pem.bytes())
    write_file(folder / "namespace", "ml\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


async def test_order_is_argument_then_variable_then_pod_then_home_folder(
    tmp_path: Path, home: Path, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    monkeypatch.setenv("KUBECONFIG", str(write_file(tmp_path / "env", kubeconfig({"token": "env"}))))
    given = write_file(tmp_path / "given", kubeconfig({"token": "given"}))
    connection = await connect(given)
    assert await bearer_of(connection) == "given"
    assert connection.source == f"kubeconfig {given}, context 'dev'"
    assert (connection.server, connection.namespace) == (SERVER, "ml")
    assert await bearer_of(await connect()) == "env"
    monkeypatch.delenv("KUBECONFIG")
    assert await bearer_of(await connect()) == "pod-token"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert await bearer_of(await connect()) == "home"


async def test_context_and_location_limit_the_sources(home: Path, pod: Path) -> None:
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    assert await bearer_of(await connect(context="dev")) == "home"
    with pytest.raises(ConfigurationError, match="there is no context 'x'; there are: 'dev'"):
        await connect(context="x")
    within = await connect(location=ExecutableLocation.WITHIN_CLUSTER)
    assert await bearer_of(within) == "pod-token"
    assert await bearer_of(await connect(location="OFF_CLUSTER")) == "home"


async def test_files_of_the_variable_are_merged_and_missing_ones_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_file(tmp_path / "a/config", {**kubeconfig({"tokenFile": "token"}), "clusters": []})
    second = write_file(
        tmp_path / "b/config", kubeconfig({"token": "second"}, **{"certificate-authority": "ca"})
    )
    write_file(tmp_path / "a/token", "first")
    write_file(tmp_path / "b/ca", trustme.CA().cert_pem.bytes())
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    entries = ["", f"{tmp_path}/none", f"{tmp_path}/dangling", f"{tmp_path}/none/../a", str(first)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([*entries, str(second)]))
    connection = await connect()
    assert await bearer_of(connection) == "first"
    assert await context_of(connection) is not None


async def test_file_of_the_variable_with_only_one_part_is_an_incomplete_kubeconfig(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    for part, problem in (
        ("clusters", "no current-context is set"),
        ("contexts", "no current-context is set; there are: 'dev'"),
        ("users", "no current-context is set"),
        ("current-context", "there is no context 'dev'"),
    ):
        file = write_file(tmp_path / "part", {part: kubeconfig()[part]})
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(ConfigurationError, match=problem):
            await connect()


async def test_tilde_is_the_home_folder_in_an_argument_and_a_name_in_the_variable(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell expands a `~`; kubectl takes one that is left as the name of a folder."""
    write_file(home / "x", kubeconfig({"token": "home"}))
    assert await bearer_of(await connect("~/x")) == "home"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "~/x")
    with pytest.raises(CredentialsError, match=f"KUBECONFIG: {tmp_path}/~/x: no such file"):
        await connect()
    write_file(tmp_path / "~/x", kubeconfig({"token": "literal"}))
    assert await bearer_of(await connect()) == "literal"


# Which file is read, and which error ends the search. Each case was compared with kubectl 1.33.


async def test_file_that_cannot_be_read_is_an_error_and_no_other_source_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "file", kubeconfig({"token": "file"}))
    write_file(tmp_path / "invalid", "a: [")
    (tmp_path / "real").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, error in (
        ("file/x", " cannot be read: Not a directory. Check the path"),
        ("loop", " cannot be read: Too many levels of symbolic links. Check the path"),
        ("real", " cannot be read: Is a directory. Check the path"),
        ("a\0b", " cannot be read: embedded null byte. Check the path"),
        ("none", " cannot be read: No such file or directory. Check the path"),
        ("invalid", ":2: not valid YAML"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            await connect([f"{tmp_path}/file", f"{tmp_path}/{path}"])
        assert f"kubeconfig {tmp_path}/{path}{error}" in str(caught.value)
        if path not in ("a\0b", "none"):
            monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/{path}{os.pathsep}{tmp_path}/file")
            with pytest.raises(ConfigurationError) as caught:
                await connect()
            assert f"kubeconfig {tmp_path}/{path}{error}" in str(caught.value)


async def test_error_without_any_source_lists_all_that_were_tried(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CredentialsError) as caught:
        await connect()
    assert caught.value.tried == (
        "$KUBECONFIG: is not set",
        "in-cluster service account: KUBERNETES_SERVICE_HOST is not set, so this process is not in a pod",
        f"~/.kube/config: {home}/.kube/config: no such file",
    )
    assert "Pass `kubeconfig=`, set KUBECONFIG, or run in a pod" in str(caught.value)
    monkeypatch.delenv("HOME")
    with pytest.raises(CredentialsError, match=r"~/\.kube/config: HOME is not set"):
        await connect()


async def test_home_folder_is_ignored_while_the_variable_is_set(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped KUBECONFIG must not lead to another cluster."""
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    for variable, reason in (
        (f"{tmp_path}/typo", f"{tmp_path}/typo: no such file"),
        (os.pathsep, "names no file"),
        (os.devnull, "/dev/null: has no clusters, contexts or users"),
    ):
        monkeypatch.setenv("KUBECONFIG", variable)
        with pytest.raises(CredentialsError) as caught:
            await connect(location="OFF_CLUSTER")
        assert caught.value.tried == (
            f"$KUBECONFIG: {reason}",
            "~/.kube/config: ignored while KUBECONFIG is set",
        )


async def test_read_that_hangs_does_not_delay_the_deadline_whose_error_names_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Opening the other side ends the abandoned thread, also if the test fails.
    release = threading.Timer(60, lambda: os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK)))
    release.start()
    before = time.monotonic()
    with pytest.raises(DeadlineExceededError, match="reading the kubeconfig or the service account"):
        await KubernetesClusterResolver(kubeconfig=fifo).cluster_spec(timeout=0.5)
    elapsed = time.monotonic() - before
    release.cancel()
    release.function()
    assert elapsed < 30


# In a pod


async def test_pod_uses_its_service_account(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await connect()
    assert connection.server == "https://10.96.0.1:443"
    assert (connection.source, connection.namespace) == ("in-cluster service account", "ml")
    assert await headers_of(connection) == {"Authorization": "Bearer pod-token"}
    assert (await context_of(connection)).cert_store_stats()["x509_ca"] == 1
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert (await connect()).server == "https://[fd00::1]:443"


async def test_namespace_is_that_of_the_context_or_else_of_the_pod(
    pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = kubeconfig({"token": "t"})
    config["contexts"][0]["context"]["namespace"] = "of-context"
    path = write_file(tmp_path / "config", config)
    assert (await connect(path)).namespace == "of-context"
    del config["contexts"][0]["context"]["namespace"]
    write_file(path, config)
    assert (await connect(path)).namespace == "ml"
    monkeypatch.setenv("POD_NAMESPACE", "training")
    assert (await connect(path)).namespace == "training"
    assert (await connect()).namespace == "training"
    (pod / "token").unlink()
    assert (await connect(path)).namespace is None


async def test_error_for_a_pod_without_a_file_or_a_port_names_it(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ("token", "ca.crt"):
        (pod / missing).rename(pod / "hidden")
        with pytest.raises(CredentialsError) as caught:
            await connect(location="WITHIN_CLUSTER")
        [tried] = caught.value.tried
        assert f"service account: {pod}/{missing}: no such file (automountServiceAccountToken" in tried
        (pod / "hidden").rename(pod / missing)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "")
    with pytest.raises(CredentialsError, match="KUBERNETES_SERVICE_PORT is not set"):
        await connect()
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "tcp://10.96.0.1:443")
    with pytest.raises(ConfigurationError, match="KUBERNETES_SERVICE_PORT: 'https:"):
        await connect()


async def test_rotated_token_is_read_after_a_minute_and_the_last_one_kept_without_its_file(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await connect()
    write_file(pod / "token", "rotated")
    assert await bearer_of(connection) == "pod-token"
    later = time.monotonic() + 61
    monkeypatch.setattr("aioresolve._core.secrets.monotonic", lambda: later)
    assert await bearer_of(connection) == "rotated"
    (pod / "token").unlink()
    assert not await renew(connection)
    write_file(pod / "token", "")
    assert not await renew(connection)
    write_file(pod / "token", "back")
    assert await renew(connection)
    assert await bearer_of(connection) == "back"


# Overrides


async def test_given_server_replaces_that_of_the_kubeconfig_but_not_its_authority(tmp_path: Path) -> None:
    authority = base64_of(trustme.CA().cert_pem.bytes())
    cluster = {"certificate-authority-data": authority, "tls-server-name": "old", "proxy-url": "http://p:1"}
    path = write_file(tmp_path / "config", kubeconfig({"token": "t"}, **cluster))
    connection = await connect(path, server="https://10.0.0.7:6443/")
    assert (connection.server, connection.tls_server_name) == ("https://10.0.0.7:6443", None)
    assert (connection.proxy, await bearer_of(connection)) == ("http://p:1", "t")
    assert connection.source.endswith("with the given server")
    assert (await context_of(connection)).cert_store_stats()["x509_ca"] == 1


async def test_given_token_file_replaces_all_credentials_of_the_user(tmp_path: Path) -> None:
    certificate = {"client-certificate": "missing", "client-key": "missing"}
    token = write_file(tmp_path / "given", "given\n")
    for user in (
        {"token": "t", "tokenFile": "missing"},
        {"username": "u", "password": "p", **certificate},
        exec_user("missing"),
    ):
        path = write_file(tmp_path / "config", kubeconfig({**user, "as": "ada"}))
        connection = await connect(path, token_file=token)
        assert await headers_of(connection) == {"Authorization": "Bearer given"}
        assert connection.fixed_headers == (("Impersonate-User", "ada"),)
        assert connection.source.endswith("with the given token file")


async def test_impersonation_replaces_only_the_fields_that_are_given(tmp_path: Path) -> None:
    user = {"token": "t", "as": "bob", "as-uid": "7", "as-groups": ["a", "b"]}
    path = write_file(tmp_path / "config", kubeconfig(user))

    async def sent(**overrides: Any) -> list[tuple[str, str]]:
        headers = (await connect(path, **overrides)).fixed_headers
        return sorted((name.removeprefix("Impersonate-"), value) for name, value in headers)

    given = (await connect(path, impersonate="ada", server=SERVER)).source
    assert given.endswith("with the given server and impersonation")

    groups = [("Group", "a"), ("Group", "b")]
    assert await sent(impersonate="ada") == [*groups, ("Uid", "7"), ("User", "ada")]
    assert await sent(impersonate_groups="c") == [("Group", "c"), ("Uid", "7"), ("User", "bob")]
    assert await sent(impersonate="ada", impersonate_groups=[]) == [*groups, ("Uid", "7"), ("User", "ada")]
    write_file(path, kubeconfig({"token": "t"}))
    with pytest.raises(ConfigurationError, match=r"only be impersonated together .* pass `impersonate=` too"):
        await sent(impersonate_groups=["a"])


async def test_given_server_needs_no_kubeconfig(tmp_path: Path) -> None:
    token = write_file(tmp_path / "given", "given")
    connection = await connect(server="https://10.0.0.7", token_file=token)
    assert (connection.server, await bearer_of(connection)) == ("https://10.0.0.7", "given")
    for context, location in ((None, "WITHIN_CLUSTER"), ("dev", None)):
        with pytest.raises(CredentialsError):
            await connect(None, context, location, server="https://10.0.0.7", token_file=token)
