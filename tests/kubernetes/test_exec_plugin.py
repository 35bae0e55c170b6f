"""Exec plugins: their input, their output, and the errors for invalid output."""

from __future__ import annotations

import json
import os
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from aioresolve.errors import CredentialsError, ResolveError
from aioresolve.kubernetes.auth.connection import ClientCertificate, Identity
from aioresolve.kubernetes.auth.exec_plugin import ExecCall, exec_call, parse_exec_credential
from aioresolve.kubernetes.auth.kubeconfig import parse_kubeconfig, select_context

from .kubeconfigs import EXEC_V1, SERVER, base64_of, exec_user, kubeconfig, runs_of, write_plugin

if TYPE_CHECKING:
    from pathlib import Path

EXEC_V1BETA1 = "client.authentication.k8s.io/v1beta1"


def call(user: dict[str, Any], authorities: Any = None, **cluster: Any) -> ExecCall:
    text = yaml.safe_dump(kubeconfig(user, **cluster)).encode()
    selection = select_context(parse_kubeconfig(text, "/home/me/.kube/config"), None)
    assert selection.user.exec_plugin is not None
    return exec_call(selection.user.exec_plugin, selection.cluster, authorities)


def credential(status: Any, **fields: Any) -> bytes:
    return json.dumps({"apiVersion": EXEC_V1, "kind": "ExecCredential", "status": status, **fields}).encode()


# What the plugin prints


def test_certificate_and_token_may_be_combined() -> None:
    output = credential({"token": "t", "clientCertificateData": "C", "clientKeyData": "K"})
    assert parse_exec_credential(output, EXEC_V1, "p") == Identity(
        "Bearer t", ClientCertificate(b"C", b"K", where="")
    )


@pytest.mark.parametrize("timestamp", ["2030-01-31T13:00:00+01:00", "2030-01-31T12:00:00.000000000Z"])
def test_expiration_time_is_read(timestamp: str) -> None:
    output = credential({"token": "t", "expirationTimestamp": timestamp})
    assert parse_exec_credential(output, EXEC_V1, "p").expires == 1896091200


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"hunter22", "printed 8 bytes that are neither a JSON nor"),
        (b"\xff\xfe\xfd", "that are neither a JSON nor"),
        (b"token: hunter22", f"apiVersion other than {EXEC_V1}"),
        (credential({"token": "hunter22"}, apiVersion=EXEC_V1BETA1), f"apiVersion other than {EXEC_V1}"),
        (credential({"token": "hunter22"}, kind="Token"), "kind other than ExecCredential"),
        (credential(None), "without status"),
        (credential({"token": ""}), "neither a token nor a client certificate"),
        (credential({"token": 5}), "returned a token that is not a string"),
        (credential({"token": "hunter22 x"}), "contains a line break, a space"),
        (credential({"clientKeyData": "hunter22"}), "only one of clientCertificateData and clientKeyData"),
        *(
            (credential({"token": "hunter22", "expirationTimestamp": time}), "is not an RFC 3339 time")
            for time in ("2030-01-31T12:00:00", "2030-13-31T12:00:00Z")
        ),
    ],
)
def test_invalid_output_is_an_error_that_does_not_show_it(output: bytes, expected: str) -> None:
    with pytest.raises(ResolveError) as caught:
        parse_exec_credential(output, EXEC_V1, "the plugin 'p'")
    assert expected in str(caught.value)
    assert "the plugin 'p'" in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__context__)
    assert "hunter22" not in shown


def test_output_may_be_yaml_of_which_the_first_document_is_read() -> None:
    output = f"""apiVersion: {EXEC_V1}
status: {{token: t, expirationTimestamp: 2030-01-31T12:00:00Z}}
---
x: 1
"""
    assert parse_exec_credential(output.encode(), EXEC_V1, "p") == Identity("Bearer t", expires=1896091200)


def test_yaml_of_more_than_64_kib_is_not_parsed() -> None:
    output = f"apiVersion: {EXEC_V1}\nstatus: {{token: t}}\n".encode()
    output += b"#" * (64 * 1024 - len(output))
    assert parse_exec_credential(output, EXEC_V1, "p") == Identity("Bearer t")
    with pytest.raises(
        CredentialsError, match="printed 65537 bytes that are neither a JSON nor a YAML object"
    ):
        parse_exec_credential(output + b"#", EXEC_V1, "p")


def test_output_may_lack_its_kind() -> None:
    output = credential({"token": "t"}, kind="")
    assert parse_exec_credential(output, EXEC_V1, "p") == Identity("Bearer t")


def test_zero_time_of_go_means_that_the_credentials_do_not_expire() -> None:
    output = credential({"token": "t", "expirationTimestamp": "0001-01-01T00:00:00Z"})
    identity = parse_exec_credential(output, EXEC_V1, "p")
    assert identity.expires is None
    assert identity.is_fresh


# The input of the plugin


def test_input_describes_the_cluster_if_the_plugin_requests_it() -> None:
    info = call(
        exec_user("p", provideClusterInfo=True, apiVersion=EXEC_V1BETA1),
        b"PEM",
        **{
            "tls-server-name": "api.example",
            "certificate-authority": "ca.pem",
            "proxy-url": "http://proxy:3128",
            "disable-compression": True,
            "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}],
        },
    ).info
    assert json.loads(info) == {
        "apiVersion": EXEC_V1BETA1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": SERVER,
                "tls-server-name": "api.example",
                "certificate-authority-data": base64_of(b"PEM"),
                "proxy-url": "http://proxy:3128",
                "disable-compression": True,
                "config": {"audience": "a"},
            },
        },
    }


async def test_plugin_gets_arguments_variables_and_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    path = write_plugin(
        tmp_path,
        f"""
received = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert received["apiVersion"] == {EXEC_V1BETA1!r}
parts = [*sys.argv[1:], os.environ["GIVEN"], os.environ["INHERITED"], received["spec"]["cluster"]["server"]]
credential({{"token": "+".join(parts)}}, api_version={EXEC_V1BETA1!r})
""",
    )
    user = exec_user(
        path,
        apiVersion=EXEC_V1BETA1,
        args=["a", "b"],
        env=[{"name": "GIVEN", "value": "g"}],
        provideClusterInfo=True,
    )
    assert await call(user).identity() == Identity(f"Bearer a+b+g+yes+{SERVER}")


@pytest.mark.parametrize("entry", ["", "bin"])
async def test_command_in_a_relative_folder_of_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    folder = tmp_path / entry
    folder.mkdir(exist_ok=True)
    path = write_plugin(folder, 'credential({"token": "t"})', "my-login")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"/nothing:{entry}:{os.environ['PATH']}")
    with pytest.raises(CredentialsError, match="in a folder of PATH that is not absolute"):
        await call(exec_user("my-login")).identity()
    assert not runs_of(path)
    monkeypatch.setenv("PATH", f"{folder}:{entry}")
    assert await call(exec_user("my-login")).identity() == Identity("Bearer t")


async def test_error_for_a_missing_command_has_its_install_hint(tmp_path: Path) -> None:
    hint = "Get it:\n\x1b[1mhttps://example.com/{x}"
    with pytest.raises(CredentialsError) as caught:
        await call(exec_user("my-login", installHint=hint)).identity()
    reason, _, shown = str(caught.value).partition(" Get it:\n")
    assert reason == (
        "the plugin 'my-login' (kubeconfig /home/me/.kube/config, user 'dev', exec) is not installed: "
        "it is not on PATH."
    )
    assert shown == "[1mhttps://example.com/{x}"
    with pytest.raises(
        CredentialsError, match=r"is not installed: there is no such program\. Install it, or"
    ):
        await call(exec_user(tmp_path / "nothing")).identity()


async def test_neither_error_nor_repr_of_a_plugin_shows_what_it_was_given(tmp_path: Path) -> None:
    path = write_plugin(tmp_path, 'sys.exit("login of hunter1 and hunter2 failed")')
    failing = call(
        exec_user(
            path, args=["hunter1"], env=[{"name": "REALM", "value": "hunter2"}], provideClusterInfo=True
        ),
        **{
            "proxy-url": "http://me:hunter3@proxy",
            "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"a": ["hunter4"]}}],
        },
    )
    with pytest.raises(CredentialsError) as caught:
        await failing.identity()
    assert str(caught.value) == (
        "the plugin 'plugin' (kubeconfig /home/me/.kube/config, user 'dev', exec) exited with code 1"
        ": login of (secret) and (secret) failed"
    )
    assert "hunter" not in repr(failing)
