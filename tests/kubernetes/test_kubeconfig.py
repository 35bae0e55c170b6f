"""Kubeconfigs: parsing, merging, and the errors for invalid ones."""

import asyncio
import json
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError, CredentialsError
from aioresolve.kubernetes.auth import Connection

from .kubeconfigs import (
    EXEC_V1,
    SERVER,
    base64_of,
    bearer_of,
    client_pair,
    connect,
    context_of,
    exec_user,
    headers_of,
    id_token,
    isolate,
    kubeconfig,
    write_file,
    write_plugin,
)

AUTHORITY = trustme.CA()
CA = base64_of(AUTHORITY.cert_pem.bytes())
CHAIN, KEY = client_pair(AUTHORITY)
CERTIFICATE = {"client-certificate-data": base64_of(CHAIN), "client-key-data": base64_of(KEY)}
PLUGIN = exec_user("x")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(tmp_path, monkeypatch)
    return tmp_path


async def read(folder: Path, config: dict[str, Any] | str | bytes, context: str | None = None) -> Connection:
    return await connect(write_file(folder / "config", config), context)


async def error_of(folder: Path, config: dict[str, Any] | str | bytes, context: str | None = None) -> str:
    with pytest.raises((ConfigurationError, CredentialsError)) as caught:
        await read(folder, config, context)
    return str(caught.value)


# Content


async def test_context_is_selected_with_its_cluster_user_and_namespace(folder: Path) -> None:
    config = kubeconfig({"token": "t"})
    config["contexts"].append({"name": "other", "context": {"cluster": "dev"}})
    connection = await read(folder, config)
    assert connection.source == f"kubeconfig {folder}/config, context 'dev'"
    assert (connection.server, connection.namespace, await bearer_of(connection)) == (SERVER, "ml", "t")
    other = await read(folder, config, "other")
    assert (other.source, other.namespace) == (f"kubeconfig {folder}/config, context 'other'", None)
    assert (other.user, await headers_of(other)) == ("no credentials", {})


async def test_every_field_of_a_cluster_is_read(folder: Path) -> None:
    folded = "\n".join(CA[start : start + 8] for start in range(0, len(CA), 8))
    cluster = {"certificate-authority-data": folded, "tls-server-name": "a_b.example."}
    more = {"proxy-url": "http://proxy:3128", "disable-compression": True}
    connection = await read(folder, kubeconfig(**cluster, **more))
    assert (connection.tls_server_name, connection.proxy) == ("a_b.example", "http://proxy:3128")
    assert connection.fixed_headers == (("Accept-Encoding", "identity"),)
    assert (await context_of(connection)).cert_store_stats()["x509_ca"] == 1


async def test_relative_paths_are_relative_to_the_kubeconfig(folder: Path) -> None:
    for name, content in (("ca", AUTHORITY.cert_pem.bytes()), ("c", CHAIN), ("sub/k", KEY), ("token", "t")):
        write_file(folder / name, content)
    (folder / "sub/bin").mkdir()
    write_plugin(folder / "sub/bin", 'credential({"token": "printed"})', "login")
    (folder / "link").symlink_to(folder / "sub/bin")
    user = {"tokenFile": "../token", "client-certificate": "../c", "client-key": f"{folder}/link/../k"}
    connection = await read(folder / "sub", kubeconfig(user, **{"certificate-authority": "../ca"}))
    assert await bearer_of(connection) == "t"
    assert (await context_of(connection)).cert_store_stats()["x509_ca"] == 1
    assert await bearer_of(await read(folder / "sub", kubeconfig(exec_user("bin/login")))) == "printed"


async def test_empty_fields_are_missing_fields(folder: Path) -> None:
    config = kubeconfig({"token": ""}, **{"certificate-authority": None, "extensions": None})
    for user in (None, {"token": ""}, {"token": None}):
        config["users"][0]["user"] = user
        assert await headers_of(await read(folder, config)) == {}
    config["users"][0]["user"] = exec_user("x", args=None, env=None)
    assert (await read(folder, config)).user == "user 'dev': exec plugin 'x'"


async def test_text_of_a_user_is_the_kind_of_its_credentials(folder: Path) -> None:
    password: dict[str, Any] = {**CERTIFICATE, "username": "u", "as": "ada"}
    plugin = exec_user("/bin/plugin")
    provider = {"auth-provider": {"name": "oidc", "config": {"id-token": id_token()}}}
    for user, text in (
        ({}, "no credentials"),
        ({"token": "t", **plugin}, "token"),
        (password, "client certificate and user name and password, acting as 'ada'"),
        (plugin, "exec plugin 'plugin'"),
        (provider, "auth-provider 'oidc'"),
        ({"token": "t", **provider}, "token"),
    ):
        assert (await read(folder, kubeconfig(user))).user == f"user 'dev': {text}"


async def test_impersonation_becomes_headers(folder: Path) -> None:
    user = {
        "as": " ada ",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"acme.com/ü %": ["c", "d"], "none": []},
    }
    assert (await read(folder, kubeconfig(user))).fixed_headers == (
        ("Impersonate-User", "ada"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-acme.com%2F%C3%BC%20%25", "c"),
        ("Impersonate-Extra-acme.com%2F%C3%BC%20%25", "d"),
    )
    without_user = {"token": "t", "as-groups": [], "as-user-extra": {}}
    assert not (await read(folder, kubeconfig(without_user))).fixed_headers


async def test_yaml_is_read_as_kubectl_reads_it(folder: Path) -> None:
    text = yaml.safe_dump(kubeconfig({"token": "TOKEN"}))
    assert await bearer_of(await read(folder, text + "---\nbroken: [\n")) == "TOKEN"
    assert (
        await bearer_of(await read(folder, text.replace("token: TOKEN", "<<: {token: merged}"))) == "merged"
    )
    for token in ("2024-01-01", "2024-99-99", "1:30", "1:30.5", "=", "1.2.3", "0x"):
        assert await bearer_of(await read(folder, text.replace("TOKEN", token))) == token
    for other in ("1", "08", "1e3", "-.5", "off"):
        assert "'dev': token: Expected `str`" in await error_of(folder, text.replace("TOKEN", other))


async def test_json_with_tabs_and_yaml_in_utf_16_are_read(folder: Path) -> None:
    config = kubeconfig({"token": "t"})
    for content in (json.dumps(config, indent="\t").encode(), yaml.safe_dump(config).encode("utf-16")):
        assert await bearer_of(await read(folder, content)) == "t"


async def test_server_without_scheme_uses_https_if_the_cluster_has_options_for_it(folder: Path) -> None:
    insecure = {"insecure-skip-tls-verify": True}
    for server, options, url in (
        ("HTTPS://API.example:6443/k8s/?a=b#c", {}, "https://API.example:6443/k8s"),
        ("https://[fd00::1]:6443", {}, "https://[fd00::1]:6443"),
        ("10.0.0.1:8080", {}, "http://10.0.0.1:8080"),
        ("localhost:8080", {}, "http://localhost:8080"),
        ("api.example", {}, "http://api.example"),
        ("10.0.0.1:6443", {"certificate-authority-data": CA}, "https://10.0.0.1:6443"),
        ("10.0.0.1:6443", insecure, "https://10.0.0.1:6443"),
        ("http://h", {**insecure, "certificate-authority": "ca"}, "http://h"),
    ):
        assert (await read(folder, kubeconfig(server=server, **options))).server == url


async def test_credentials_are_those_that_kubectl_uses(folder: Path) -> None:
    write_file(folder / "token", "from-file\n")
    acting = {"as": "u", "as-uid": "7", "as-groups": ["g"]}
    for user, authorization in (
        ({"token": "t", "tokenFile": "token", **CERTIFICATE, **PLUGIN}, "Bearer from-file"),
        ({"token": " t\n", "unknown": "x"}, "Bearer t"),
        ({"tokenFile": "token", "password": "p"}, "Bearer from-file"),
        ({"username": "ü", "password": "p"}, "Basic " + base64_of("ü:p".encode())),
        ({"username": "u", **PLUGIN}, "Basic " + base64_of(b"u:")),
        ({"password": "p", **CERTIFICATE}, None),
        ({"token": "t", "client-key": "k.pem", "client-key-data": "aw=="}, "Bearer t"),
        ({"token": "t", **exec_user("x", interactiveMode="Always")}, "Bearer t"),
        ({"as": "u", "extensions": [{"name": "x"}]}, None),
        ({**acting, "as-user-extra": {"a": ["b"]}, "extensions": [{"name": "x"}]}, None),
    ):
        connection = await read(folder, kubeconfig(user))
        assert (await headers_of(connection)).get("Authorization") == authorization
    with pytest.raises(CredentialsError, match=r"the plugin 'x' .* is not installed"):
        await headers_of(await read(folder, kubeconfig({"password": "p", **PLUGIN})))


async def test_mistake_in_the_entry_of_another_context_has_no_effect(folder: Path) -> None:
    config = kubeconfig({"token": "t"})
    config["users"].append({"name": "broken", "user": {"token": 5}})
    config["clusters"].append({"name": "broken", "cluster": ["no"]})
    assert await bearer_of(await read(folder, config)) == "t"


async def test_first_file_that_has_a_name_wins_it(folder: Path) -> None:
    own = kubeconfig({"tokenFile": "token"})
    first = {"users": own["users"], "contexts": own["contexts"], "current-context": ""}
    second = kubeconfig({"token": "second"}, server="https://second")
    second["contexts"].append({"name": "other", "context": {"cluster": "dev", "user": "dev"}})
    third = {**kubeconfig({"token": "third"}, server="https://third"), "current-context": "other"}
    configs = enumerate((first, second, third))
    paths = [write_file(folder / f"{number}/config", config) for number, config in configs]
    write_file(folder / "0/token", "first")
    connection = await connect(paths)
    assert (connection.server, await bearer_of(connection)) == ("https://second", "first")
    assert connection.source == f"kubeconfig {folder}/0/config, context 'dev'"
    assert (await connect(paths, "other")).source == f"kubeconfig {folder}/1/config, context 'other'"


# Errors


async def test_error_for_an_invalid_file_says_what_is_wrong(folder: Path) -> None:
    for text, expected in (
        ("- a\n- b\n", "config: Expected a mapping, got a list. A kubeconfig has"),
        ("kind: Pod\nclusters: []\n", "'Pod' is not the kind of a kubeconfig"),
        ("apiVersion: apps/v1\n", "'apps/v1' is not the apiVersion of a kubeconfig"),
        (b"a: b\nc: \xff\xfe", "config: not valid YAML"),
        ("users:\n  user: *x\n", "config:2: not valid YAML (column 9)"),
        ("users: &x [*x]\n", "config: not valid YAML"),
        ("users: {}", "config: users: Expected a list, got a mapping"),
        ("users: [5]", "config: users[0]: Expected a mapping, got `int`"),
        ("users: [{name: a, user: {}}, {name: a, user: {}}]", "users: the name 'a' is used twice"),
        ("users: [{name: no}]", "users[0].name: Expected `str`, got `bool`. Put a text in quotes."),
    ):
        assert expected in await error_of(folder, text)


async def test_yaml_error_names_the_line_and_never_quotes_it(folder: Path) -> None:
    for text in (
        "users:\n- name: u\n  user: {token: *hunter22}\n",
        "users:\n- name: u\n  user: {token: !hunter22 x}\n",
        "users:\n- name: u\n\tuser: {token: hunter22}\n",
        '{"token": hunter22',
    ):
        with pytest.raises(ConfigurationError, match=r"config:[1-4]: not valid YAML") as caught:
            await read(folder, text)
        assert "hunter22" not in "".join(traceback.format_exception(caught.value))


async def test_error_for_a_context_names_the_missing_entry_and_those_that_exist(folder: Path) -> None:
    for changes, expected in (
        ({"current-context": ""}, "config: no current-context is set; there are: 'dev'"),
        ({"current-context": "x"}, "config: there is no context 'x'; there are: 'dev'"),
        ({"contexts": []}, "config: there is no context 'dev'; there are: none"),
        ({"clusters": []}, "context 'dev': there is no cluster 'dev'; there are: none"),
        ({"users": []}, "context 'dev': there is no user 'dev'; there are: none"),
        ({"clusters": [{"name": "dev"}]}, "cluster 'dev': server: '' is not the URL of a server"),
    ):
        assert expected in await error_of(folder, {**kubeconfig({"token": "t"}), **changes})


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("hunter22", "'dev': Expected a mapping, got `str`"),
        ({"token": True}, "token: Expected `str`, got `bool`. Put a text in quotes."),
        ({"token": "hunter22\nX: y"}, "token contains a line break"),
        ({**CERTIFICATE, "client-certificate-data": "%%%"}, "client-certificate-data is not valid base64"),
        ({"token": "t", "client-certificate": "c.pem"}, "has a client-certificate without a client-key"),
        ({"client-certificate": "no", "client-key": "no"}, "client-certificate {}/no cannot be read: No"),
        ({"tokenFile": "no"}, "tokenFile {}/no cannot be read: No such file"),
        ({"tokenFile": "empty"}, "tokenFile {}/empty is empty"),
        ({"client-key": "k.pem"}, "has fields, but no credentials that can be used. Add token, tokenFile"),
        ({"token": "t", "username": "u"}, "has both a token and username/password"),
        ({"tokenFile": "t", "username": "u"}, "has both a token and username/password"),
        ({**CERTIFICATE, "client-key": "k"}, "client-key is both a path and data. Remove one of them."),
        ({"hunter22": "x"}, "has fields, but no credentials that can be used"),
        ({"as": "x\n"}, "or as-user-extra contains a control character. Remove it."),
        ({"as": " "}, "only be impersonated together with a user. Add `as: USER`"),
        ({"as-user-extra": {"a": []}}, "only be impersonated together with a user"),
        ({**PLUGIN, "auth-provider": {"name": "oidc"}}, "has both exec and auth-provider"),
        ({"exec": {"apiVersion": EXEC_V1}}, "exec: has no command"),
        (exec_user("x", apiVersion="v1alpha1"), "exec.apiVersion: 'v1alpha1' is not one of client.auth"),
        (exec_user("x", interactiveMode="Always"), "Mode: the plugin requires a terminal (Always)"),
        (exec_user("x", interactiveMode="Often"), "exec.interactiveMode: Invalid enum value 'Often'"),
        (exec_user("x", env=[{"value": "hunter22"}]), "exec.env[0]: Object missing required field `name`"),
    ],
)
async def test_error_for_an_invalid_user_names_file_and_field(folder: Path, user: Any, expected: str) -> None:
    write_file(folder / "empty", "\n")
    config = kubeconfig()
    config["users"][0]["user"] = user
    message = await error_of(folder, config)
    assert message.startswith(f"kubeconfig {folder}/config, user 'dev'")
    assert expected.format(folder) in message
    assert "hunter22" not in message


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        *(
            ({"server": server}, "server: the URL contains a user name or password")
            for server in ("https://me:hunter22@h", "https://hunter22@h", "me:hunter22@host:1")
        ),
        *(
            ({"server": server}, "is not the URL of a server. Write https://HOST:PORT.")
            for server in (
                "ftp://h",
                "https://",
                "https://h:99999",
                "https://h:0",
                "https://[fd00::1",
                "https://h h",
                "a/path",
            )
        ),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "ca"}, "verify: true contradict one"),
        ({"insecure-skip-tls-verify": "true"}, "insecure-skip-tls-verify: Expected `bool`, got `str`"),
        ({"tls-server-name": "a..b"}, "tls-server-name: not a host name or address"),
        ({"proxy-url": "me:hunter22"}, "proxy-url: not the URL of an HTTP proxy"),
        ({"proxy-url": "socks5://me:hunter22@p:1080"}, "proxy; SOCKS proxies are not supported"),
    ],
)
async def test_error_for_an_invalid_cluster_names_file_and_field(
    folder: Path, cluster: dict[str, Any], expected: str
) -> None:
    message = await error_of(folder, kubeconfig(**cluster))
    assert message.startswith(f"kubeconfig {folder}/config, cluster 'dev': ")
    assert expected in message
    assert "hunter22" not in message


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_content_is_valid_or_raises_a_configuration_error(content: bytes) -> None:
    with suppress(ConfigurationError), tempfile.TemporaryDirectory() as name:
        asyncio.run(read(Path(name), content))
