"""Kubeconfigs: parsing, merging, and the errors for invalid ones."""

from __future__ import annotations

import json
import re
import traceback
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError
from aioresolve.kubernetes.auth.kubeconfig import (
    Kubeconfig,
    Selection,
    User,
    merge_kubeconfigs,
    parse_kubeconfig,
    select_context,
)

from .kubeconfigs import EXEC_V1, SERVER, base64_of, exec_user, kubeconfig

PATH = "/home/me/.kube/config"
PEM = b"-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n"


def parse(config: dict[str, Any] | str | bytes, path: str = PATH) -> Kubeconfig:
    text = yaml.safe_dump(config) if isinstance(config, dict) else config
    return parse_kubeconfig(text.encode() if isinstance(text, str) else text, path)


def select(config: dict[str, Any] | str | bytes, context: str | None = None) -> Selection:
    return select_context(parse(config), context)


def user_of(user: dict[str, Any]) -> User:
    return select(kubeconfig(user)).user


def error_of(config: dict[str, Any] | str | bytes, context: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        select(config, context)
    return str(caught.value)


# Content


def test_context_is_selected_with_its_cluster_user_and_namespace() -> None:
    config = kubeconfig({"token": "t"})
    config["contexts"].append({"name": "other", "context": {"cluster": "dev"}})
    selection = select(config)
    assert selection.context == "dev"
    assert selection.where == f"kubeconfig {PATH}, context 'dev'"
    assert selection.namespace == "ml"
    assert selection.cluster.server == SERVER
    assert selection.user.token == "t"
    other = select(config, "other")
    assert (other.context, other.namespace) == ("other", None)
    assert other.user == User(where=f"kubeconfig {PATH}, context 'other'")


def test_every_field_of_a_cluster_is_read() -> None:
    folded = "\n".join(base64_of(PEM)[i : i + 8] for i in range(0, len(base64_of(PEM)), 8))
    cluster = select(
        kubeconfig(
            **{
                "certificate-authority-data": folded,
                "tls-server-name": "api.example",
                "proxy-url": "http://proxy:3128",
                "disable-compression": True,
                "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}}],
            }
        )
    ).cluster
    assert cluster.certificate_authority is not None
    assert cluster.certificate_authority.data == PEM
    assert cluster.tls_server_name == "api.example"
    assert cluster.proxy_url == "http://proxy:3128"
    assert cluster.disable_compression
    assert not cluster.insecure_skip_tls_verify
    assert cluster.exec_extension == {"a": 1}


def test_relative_paths_are_relative_to_the_kubeconfig() -> None:
    selection = select(
        kubeconfig(
            {
                "tokenFile": "token",
                "client-certificate": "../tls/c.pem",
                "client-key": "/etc/k.pem",
                **exec_user("bin/login"),
            },
            **{"certificate-authority": "ca.pem"},
        )
    )
    user, authority = selection.user, selection.cluster.certificate_authority
    assert user.token_file == "/home/me/.kube/token"
    assert user.client_certificate is not None
    assert user.client_certificate.path == "/home/me/tls/c.pem"
    assert user.client_key is not None
    assert user.client_key.path == "/etc/k.pem"
    assert user.exec_plugin is not None
    assert user.exec_plugin.command == "/home/me/.kube/bin/login"
    assert authority is not None
    assert authority.path == "/home/me/.kube/ca.pem"


def test_empty_fields_are_missing_fields() -> None:
    config = kubeconfig()
    for user in (None, {"token": ""}, {"token": None}):
        config["users"][0]["user"] = user
        assert select(config).user == User(where=f"kubeconfig {PATH}, user 'dev'")


def test_exec_plugin_is_read_and_a_bare_command_is_looked_up_on_path() -> None:
    plugin = user_of(
        exec_user(
            "aws", args=["eks", "get-token"], env=[{"name": "A", "value": "b"}], installHint="get it",
            provideClusterInfo=True,
        )
    ).exec_plugin  # fmt: skip
    assert plugin is not None
    assert (plugin.command, plugin.args, plugin.env) == ("aws", ("eks", "get-token"), (("A", "b"),))
    assert (plugin.api_version, plugin.install_hint, plugin.provide_cluster_info) == (EXEC_V1, "get it", True)


@pytest.mark.parametrize(
    ("user", "text"),
    [
        ({}, "user 'dev': no credentials"),
        ({"auth-provider": {"name": "oidc"}}, "user 'dev': auth-provider 'oidc'"),
        ({"tokenFile": "/t"}, "user 'dev': token file /t"),
        (
            {"client-certificate": "/c", "client-key": "/k", "username": "u", "as": "ada"},
            "user 'dev': client certificate and user name and password, acting as 'ada'",
        ),
        (exec_user("/bin/plugin"), "user 'dev': exec plugin 'plugin'"),
        ({"token": "t", **exec_user("/bin/plugin")}, "user 'dev': token"),
    ],
)
def test_text_of_a_user_is_the_kind_of_its_credentials(user: dict[str, Any], text: str) -> None:
    assert str(user_of(user)) == text


def test_impersonation_becomes_headers() -> None:
    user = user_of(
        {
            "as": " ada ",
            "as-uid": "7",
            "as-groups": ["a", "b"],
            "as-user-extra": {"acme.com/ü %": ["c", "d"], "none": []},
        }
    )
    assert [*user.impersonation] == [
        ("Impersonate-User", "ada"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-acme.com%2F%C3%BC%20%25", "c"),
        ("Impersonate-Extra-acme.com%2F%C3%BC%20%25", "d"),
    ]
    assert not user_of({"token": "t", "as-groups": [], "as-user-extra": {}}).impersonation


def test_first_document_is_read_and_merge_keys_replace_fields_as_for_kubectl() -> None:
    text = yaml.safe_dump(kubeconfig({"token": "TOKEN"}))
    assert select(text + "---\nbroken: [\n").user.token == "TOKEN"
    for fields, token in (
        ("<<: {token: merged}", "merged"),
        ("token: own\n    <<: {token: merged}", "merged"),
        ("<<: {token: merged}\n    token: own", "own"),
        ("<<: [{token: first}, {token: second}]", "first"),
    ):
        assert select(text.replace("token: TOKEN", fields)).user.token == token
    for invalid in ("<<: [1]", "<<: text", "<<: &a {<<: *a}"):
        assert "not valid YAML" in error_of(text.replace("token: TOKEN", invalid))


def test_plain_scalars_are_strings_where_they_are_for_kubectl() -> None:
    text = yaml.safe_dump(kubeconfig({"token": "TOKEN"}))
    for token in ("2024-01-01", "2024-99-99", "1:30", "1:30.5", "=", "1.2.3", "0x"):
        assert select(text.replace("TOKEN", token)).user.token == token
    for other in ("1", "08", "0o10", "1e3", "-.5", ".inf", "y", "N", "off"):
        assert "users[dev].user.token: Expected `str`" in error_of(text.replace("TOKEN", other))


def test_json_indented_with_tabs_is_read() -> None:
    assert select(json.dumps(kubeconfig({"token": "t"}), indent="\t")).user.token == "t"


@pytest.mark.parametrize(
    ("server", "options", "url"),
    [
        ("HTTPS://API.example:6443/k8s/?a=b#c", {}, "https://API.example:6443/k8s"),
        ("10.0.0.1:8080", {}, "http://10.0.0.1:8080"),
        ("10.0.0.1:6443", {"certificate-authority-data": "eA=="}, "https://10.0.0.1:6443"),
        ("10.0.0.1:6443", {"insecure-skip-tls-verify": True}, "https://10.0.0.1:6443"),
        ("http://h", {"insecure-skip-tls-verify": True, "certificate-authority": "ca"}, "http://h"),
    ],
)
def test_server_without_scheme_uses_https_if_the_cluster_has_options_for_it(
    server: str, options: dict[str, Any], url: str
) -> None:
    assert select(kubeconfig(server=server, **options)).cluster.server == url


def test_tls_server_name_is_a_name_or_an_address() -> None:
    for written, name in (("a_b.example.", "a_b.example"), ("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")):
        assert select(kubeconfig(**{"tls-server-name": written})).cluster.tls_server_name == name
    for invalid in ("x" * 64, "x." * 128, "a..b", "bücher.example", "[h]", "::1]"):
        message = error_of(kubeconfig(**{"tls-server-name": invalid}))
        assert "clusters[dev].cluster.tls-server-name: not a host name or address" in message


CERTIFICATE = {"client-certificate": "c.pem", "client-key": "k.pem"}
PLUGIN = exec_user("x")


@pytest.mark.parametrize(
    ("user", "used"),
    [
        ({"token": "t", "tokenFile": "f", **CERTIFICATE, **PLUGIN}, {"token", "token_file", "certificate"}),
        ({"tokenFile": "f", "password": "p"}, {"token_file"}),
        ({"username": "u", "password": "p", **CERTIFICATE}, {"username", "password", "certificate"}),
        ({"password": "p", **PLUGIN}, {"plugin"}),
        ({"password": "p", **CERTIFICATE}, {"certificate"}),
        ({"token": "t", "client-key": "k.pem", "client-key-data": "aw=="}, {"token"}),
        ({"token": "t", **exec_user("x", interactiveMode="Always")}, {"token"}),
        ({"token": "t", "unknown": "x"}, {"token"}),
        (exec_user("x", apiVersion="client.authentication.k8s.io/v1beta1", interactiveMode=None), {"plugin"}),
        ({"as": "u", "extensions": [{"name": "x"}]}, set()),
    ],
)
def test_credentials_are_those_that_kubectl_uses(user: dict[str, Any], used: set[str]) -> None:
    found = user_of(user)
    values = {
        "token": found.token,
        "token_file": found.token_file,
        "username": found.username,
        "password": found.password,
        "certificate": found.client_certificate,
        "plugin": None if found.has_static_credentials else found.exec_plugin,
    }
    assert {name for name, value in values.items() if value is not None} == used


def test_file_is_empty_without_entries_and_current_context() -> None:
    assert all(parse(text).is_empty for text in ("", "---\n", "apiVersion: v1\nkind: Config\nclusters: []"))
    entries = (f"{key}: [{{name: a}}]" for key in ("clusters", "contexts", "users"))
    assert not any(parse(text).is_empty for text in ("current-context: a", *entries))


def test_mistake_in_the_entry_of_another_context_has_no_effect() -> None:
    config = kubeconfig({"token": "t"})
    config["users"].append({"name": "broken", "user": {"token": 5}})
    config["clusters"].append({"name": "broken", "cluster": ["no"]})
    assert select(config).user.token == "t"


# Merging


def test_cluster_and_user_of_a_context_may_be_in_other_files() -> None:
    config = kubeconfig({"tokenFile": "token"}, **{"certificate-authority": "ca.pem"})
    files = [
        parse({key: config[key]}, f"/{key}/config")
        for key in ("contexts", "users", "clusters", "current-context")
    ]
    selection = select_context(merge_kubeconfigs(files), None)
    assert selection.user.token_file == "/users/token"
    assert selection.cluster.certificate_authority is not None
    assert selection.cluster.certificate_authority.path == "/clusters/ca.pem"
    assert selection.where == "kubeconfig /contexts/config, context 'dev'"


NAMES = st.sampled_from(["a", "b", "c"])


@st.composite
def files(draw: st.DrawFn) -> list[Kubeconfig]:
    """Kubeconfigs that share names; the token of each user identifies its file."""
    result = []
    for number in range(draw(st.integers(1, 4))):
        names = draw(st.sets(NAMES))
        config = {
            "current-context": draw(st.none() | st.just("") | NAMES),
            "clusters": [
                {"name": name, "cluster": {"server": f"https://{number}"}} for name in draw(st.sets(NAMES))
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in names],
            "users": [{"name": name, "user": {"token": f"{number}"}} for name in draw(st.sets(NAMES))],
        }
        result.append(parse(config, f"/{number}/config"))
    return result


@given(files())
def test_first_file_that_has_a_name_wins_it(configs: list[Kubeconfig]) -> None:
    together = merge_kubeconfigs(configs)
    for kind in ("contexts", "clusters", "users"):
        names = {name for config in configs for name in getattr(config, kind)}
        assert set(getattr(together, kind)) == names
        for name in names:
            first = next(getattr(config, kind)[name] for config in configs if name in getattr(config, kind))
            assert getattr(together, kind)[name] is first
    assert together.current_context == next(
        (config.current_context for config in configs if config.current_context), None
    )


# Errors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "- a\n- b\n",
            f"{PATH}: Expected a mapping, got a list. A kubeconfig has",
        ),
        ("kind: Pod\nclusters: []\n", "'Pod' is not the kind of a kubeconfig"),
        ("apiVersion: apps/v1\n", "'apps/v1' is not the apiVersion of a kubeconfig"),
        (b"a: b\nc: \xff\xfe", f"{PATH}: not valid UTF-8"),
        ("users:\n  user: *x\n", f"{PATH}:2: not valid YAML (column 9)"),
        ("users: {}", f"{PATH}: users: Expected a list, got a mapping"),
        ("users: [5]", f"{PATH}: users[0]: Expected a mapping, got `int`"),
        ("users: [{name: a, user: {}}, {name: a, user: {}}]", "users: the name 'a' is used twice"),
        ("users: [{name: no}]", "users[0].name: Expected `str`, got `bool`. Put a text in quotes."),
    ],
)
def test_error_for_an_invalid_file_says_what_is_wrong(text: str | bytes, expected: str) -> None:
    assert expected in error_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "users:\n- name: u\n  user: {token: *hunter22}\n",
        "users:\n- name: u\n  user: {token: !hunter22 x}\n",
        "users:\n- name: u\n\tuser: {token: hunter22}\n",
        '{"token": hunter22',
    ],
)
def test_yaml_error_names_the_line_and_never_quotes_it(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"^kubeconfig {PATH}:[1-4]: (.*: )?not valid YAML"
    ) as caught:
        select(text)
    assert "hunter22" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("changes", "context", "expected"),
    [
        ({"current-context": ""}, None, "no current-context is set; the file has: 'dev'"),
        ({"current-context": "x"}, None, "current-context: there is no context 'x'; there are: 'dev'"),
        ({}, "x", f"kubeconfig {PATH}: there is no context 'x'; there are: 'dev'"),
        ({"contexts": []}, "dev", f"kubeconfig {PATH}: no contexts are defined. Add one with"),
        (
            {"contexts": [{"name": "dev", "context": {"cluster": "x"}}]},
            None,
            "contexts[dev].context.cluster: there is no cluster 'x'; there are: 'dev'",
        ),
        (
            {"contexts": [{"name": "dev", "context": {"cluster": "dev", "user": "x"}}]},
            None,
            "contexts[dev].context.user: there is no user 'x'; there are: 'dev'",
        ),
        ({"contexts": [{"name": "dev", "context": {}}]}, None, "contexts[dev].context: has no cluster"),
        ({"clusters": [{"name": "dev"}]}, None, "clusters[dev].cluster: has no server"),
    ],
)
def test_error_for_a_context_names_the_missing_entry_and_those_that_exist(
    changes: dict[str, Any], context: str | None, expected: str
) -> None:
    assert expected in error_of({**kubeconfig({"token": "t"}), **changes}, context)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("hunter22", "users[dev].user: Expected a mapping, got `str`"),
        ({"token": True}, "user.token: Expected `str`, got `bool`. Put a text in quotes."),
        ({"client-certificate-data": "%%%"}, "client-certificate-data: not valid base64"),
        ({"token": "t", "client-certificate": "c.pem"}, "has a client-certificate without a client-key"),
        ({"client-key": "k.pem"}, "has a client-key without a client-certificate. Add client-certificate."),
        ({"token": "t", "username": "u"}, "has both a token and username/password"),
        ({"token": "t", "password": "p"}, "has both a token and username/password"),
        ({"tokenFile": "t", "username": "u"}, "has both a token and username/password"),
        ({"password": "hunter22"}, "has a password without a username. Add username."),
        (
            {"client-certificate": "c", "client-certificate-data": "aw==", "client-key": "k"},
            "has both client-certificate and client-certificate-data. Remove one of them.",
        ),
        (
            {"client-certificate": "c", "client-key-data": "aw==", "client-key": "k"},
            "has both client-key and client-key-data. Remove one of them.",
        ),
        ({"Token": "hunter22"}, "has no credentials but an unknown field. Known are as, as-groups,"),
        ({"hunter22": "x"}, "has no credentials but an unknown field. Known are as, as-groups,"),
        ({"as": "x\n"}, "user.as: contains a line break or a control character. Remove it."),
        ({"as": "u", "as-user-extra": {"a": ["x\x7f"]}}, "user.as-user-extra: contains a line break"),
        ({"as": " "}, "without `as`"),
        ({"as-groups": ["a"]}, "without `as`"),
        ({"as-user-extra": {"a": []}}, "without `as`"),
        ({**PLUGIN, "auth-provider": {"name": "oidc"}}, "has both exec and auth-provider"),
        ({"auth-provider": {}}, "users[dev].user.auth-provider: has no name"),
        ({"exec": {"apiVersion": EXEC_V1}}, "users[dev].user.exec: has no command"),
        (
            exec_user("x", apiVersion="client.authentication.k8s.io/v1alpha1"),
            "apiVersion: 'client.authentication.k8s.io/v1alpha1' is not supported",
        ),
        (
            exec_user("x", interactiveMode="Always"),
            "interactiveMode: the plugin requires a terminal (Always)",
        ),
        (exec_user("x", interactiveMode="Often"), "interactiveMode: 'Often' is not one of"),
        (
            {"token": "t", **exec_user("x", interactiveMode=None)},
            "has no interactiveMode, which client.authentication.k8s.io/v1",
        ),
        (exec_user("x", env=[{"value": "hunter22"}]), "exec.env[0]: Object missing required field `name`"),
    ],
)
def test_error_for_an_invalid_user_names_file_and_field(user: Any, expected: str) -> None:
    config = kubeconfig()
    config["users"][0]["user"] = user
    message = error_of(config)
    assert re.match(rf"kubeconfig {PATH}: users\[dev\]\.user", message)
    assert expected in message
    assert "hunter22" not in message


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"server": "https://me:hunter22@h"}, "cluster.server: the URL contains a user name or password"),
        (
            {"insecure-skip-tls-verify": True, "certificate-authority": "ca"},
            "certificate-authority and insecure-skip-tls-verify: true contradict each other",
        ),
        (
            {"insecure-skip-tls-verify": "true"},
            "insecure-skip-tls-verify: Expected `bool`, got `str`",
        ),
        ({"proxy-url": "socks5://p:1"}, "proxy-url: SOCKS proxies (socks5) are not supported"),
        ({"proxy-url": "me:hunter22"}, "proxy-url: not a valid URL. Write it as http://proxy:3128."),
    ],
)
def test_error_for_an_invalid_cluster_names_file_and_field(cluster: dict[str, Any], expected: str) -> None:
    message = error_of(kubeconfig(**cluster))
    assert re.match(rf"kubeconfig {PATH}: clusters\[dev\]\.cluster", message)
    assert expected in message
    assert "hunter22" not in message


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "hunter22", "hunter22\0", "x\n", "aHVudA=="]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "value", "args", "env", "config"]), inner, max_size=3)
    ),
    max_leaves=4,
)
SECRETS = [
    *("token", "username", "password", "client-certificate-data", "client-key-data", "exec", "auth-provider"),
    *("as", "as-groups", "as-user-extra", "hunter22"),
]


@given(st.dictionaries(st.sampled_from(SECRETS), JUNK, max_size=4), st.booleans())
def test_error_for_any_value_of_a_user_names_file_and_entry_and_not_the_value(
    user: dict[str, Any], is_json: bool
) -> None:
    summary = f"kubeconfig {PATH}: users[dev].user"
    try:
        shown = repr(select(json.dumps(kubeconfig(user)) if is_json else kubeconfig(user)))
    except ConfigurationError as error:
        shown, summary = "".join(traceback.format_exception(error)), error.summary
    assert re.match(rf"kubeconfig {PATH}(: users\[dev\]\.user|:\d+: not valid YAML)", summary)
    assert "hunter22" not in shown


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_content_is_valid_or_raises_a_configuration_error(content: bytes) -> None:
    with suppress(ConfigurationError):
        select(content)
