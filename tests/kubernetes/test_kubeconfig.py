"""Kubeconfigs: parsing, merging, and the errors for invalid ones."""

from __future__ import annotations

import copy
import json
import re
import traceback
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import example, given
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


def select(config: dict[str, Any] | str | bytes, context: str | None = None) -> Selection:
    text = yaml.safe_dump(config) if isinstance(config, dict) else config
    return select_context(parse_kubeconfig(text.encode() if isinstance(text, str) else text, PATH), context)


def user_of(user: dict[str, Any]) -> User:
    return select(kubeconfig(user)).user


# Content


def test_current_context_is_selected_with_its_cluster_user_and_namespace() -> None:
    selection = select(kubeconfig({"token": "t"}))
    assert selection.context == "dev"
    assert selection.where == f"kubeconfig {PATH}, context 'dev'"
    assert selection.namespace == "ml"
    assert selection.cluster.server == SERVER
    assert selection.user.token == "t"


def test_context_can_be_selected_by_name() -> None:
    config = kubeconfig({"token": "t"})
    config["contexts"].append({"name": "other", "context": {"cluster": "dev"}})
    selection = select(config, "other")
    assert (selection.context, selection.namespace, selection.user.token) == ("other", None, None)


def test_every_field_of_a_cluster_is_read() -> None:
    cluster = select(
        kubeconfig(
            **{
                "certificate-authority-data": base64_of(PEM),
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
    assert select(kubeconfig(**{"insecure-skip-tls-verify": True})).cluster.insecure_skip_tls_verify


def test_relative_paths_are_relative_to_the_kubeconfig() -> None:
    selection = select(
        kubeconfig(
            {"tokenFile": "token", "client-certificate": "../tls/c.pem", "client-key": "/etc/k.pem"},
            **{"certificate-authority": "ca.pem"},
        )
    )
    user, authority = selection.user, selection.cluster.certificate_authority
    assert user.token_file == "/home/me/.kube/token"
    assert user.client_certificate is not None
    assert user.client_certificate.path == "/home/me/tls/c.pem"
    assert user.client_key is not None
    assert user.client_key.path == "/etc/k.pem"
    assert authority is not None
    assert authority.path == "/home/me/.kube/ca.pem"


def test_base64_may_be_folded_over_lines() -> None:
    folded = "\n".join(base64_of(PEM)[i : i + 8] for i in range(0, len(base64_of(PEM)), 8))
    authority = select(kubeconfig(**{"certificate-authority-data": folded})).cluster.certificate_authority
    assert authority is not None
    assert authority.data == PEM


def test_context_without_a_user_has_no_credentials() -> None:
    config = kubeconfig()
    del config["contexts"][0]["context"]["user"]
    user = select(config).user
    assert user == User(where=f"kubeconfig {PATH}, context 'dev'")


@pytest.mark.parametrize("user", [None, {}, {"token": ""}, {"token": None}])
def test_empty_fields_are_missing_fields(user: dict[str, Any] | None) -> None:
    config = kubeconfig()
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
    ("command", "path"),
    [
        ("./bin/login", "/home/me/.kube/bin/login"),
        ("bin/login", "/home/me/.kube/bin/login"),
        ("/x/y", "/x/y"),
    ],
)
def test_command_with_a_slash_is_relative_to_the_kubeconfig(command: str, path: str) -> None:
    plugin = user_of(exec_user(command)).exec_plugin
    assert plugin is not None
    assert plugin.command == path


OIDC = {"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}}


@pytest.mark.parametrize(
    ("user", "text"),
    [
        ({}, "user 'dev': no credentials"),
        (OIDC, "user 'dev': auth-provider 'oidc'"),
        ({"token": "t"}, "user 'dev': token"),
        ({"token": "t", **OIDC}, "user 'dev': token"),
        ({"tokenFile": "/t"}, "user 'dev': token file /t"),
        ({"client-certificate": "/c", "client-key": "/k"}, "user 'dev': client certificate"),
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


def test_auth_provider_is_read() -> None:
    provider = user_of(OIDC).auth_provider
    assert provider is not None
    assert (provider.name, dict(provider.config)) == ("oidc", {"id-token": "x"})


@pytest.mark.parametrize(
    ("user", "headers"),
    [
        ({"as": "ada"}, [("User", "ada")]),
        ({"as": " ada "}, [("User", "ada")]),
        ({"as": "ada", "as-uid": "7"}, [("User", "ada"), ("Uid", "7")]),
        ({"as": "ada", "as-groups": ["a", "b"]}, [("User", "ada"), ("Group", "a"), ("Group", "b")]),
        ({"as": "ada", "as-groups": []}, [("User", "ada")]),
        ({"as": "ada", "as-user-extra": {}}, [("User", "ada")]),
        (
            {"as": "ada", "as-user-extra": {"acme.com/ü %": ["b", "c"], "none": []}},
            [("User", "ada"), *[("Extra-acme.com%2F%C3%BC%20%25", value) for value in "bc"]],
        ),
        ({"token": "t", "as-groups": [], "as-user-extra": {}}, []),
    ],
)
def test_impersonation_becomes_headers(user: dict[str, Any], headers: list[tuple[str, str]]) -> None:
    assert [*user_of(user).impersonation] == [(f"Impersonate-{name}", value) for name, value in headers]


# What kubectl 1.33 reads, case by case. `{token}` stands for the value of the user's token.

KUBECTL = """\
apiVersion: v1
kind: Config
current-context: dev
clusters: [{name: dev, cluster: {server: "https://10.0.0.1:6443"}}]
contexts: [{name: dev, context: {cluster: dev, user: dev}}]
users:
- name: dev
  user:
    token: {token}
"""


@pytest.mark.parametrize(
    ("written", "token"),
    [
        ("2024-01-01", "2024-01-01"),
        ("2024-99-99", "2024-99-99"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("=", "="),
        ("<<", "<<"),
        ("!!str 5", "5"),
        ("'08'", "08"),
        ("1.2.3", "1.2.3"),
        ("0xg", "0xg"),
        ("TRue", "TRue"),
        ("t\n    token: last", "last"),
        ("5\n    token: last", "last"),
        ("own\n    <<: {token: merged}", "merged"),
        ("own\n    <<: [{token: first}, {token: second}]", "first"),
        ("one\n    <<: {token: two}\n    <<: {as: u, token: three}", "three"),
        ("one\n    <<: {token: two}\n    token: three", "three"),
        ("t\n---\n", "t"),
        ("t\n...\n", "t"),
        ("t\n---\nkind: Pod\n", "t"),
        ("t\n---\nbroken: [\n", "t"),
        ("t\n- user: {token: another}", "t"),
        ("t\n- ", "t"),
    ],
)
def test_text_is_read_as_by_kubectl(written: str, token: str) -> None:
    assert select(KUBECTL.replace("{token}", written)).user.token == token


@pytest.mark.parametrize(
    "written",
    [
        *["5", "1e3", "010", "0o10", "08", "1_000", "0x1F", "0b1", "+5", "5.", ".5", ".inf", "!!int 5"],
        *["!!float 5", "yes", "y", "N", "off", "True"],
    ],
)
def test_numbers_and_booleans_are_no_strings_as_for_kubectl(written: str) -> None:
    kind = "a boolean" if written.isalpha() else "a number"
    assert f"user.token: must be a string, not {kind}. Put it in quotes." in error_of(
        KUBECTL.replace("{token}", written)
    )


@pytest.mark.parametrize("written", ["y", "yes", "On", "TRUE"])
def test_booleans_may_be_written_as_for_kubectl(written: str) -> None:
    text = yaml.safe_dump(kubeconfig(**{"insecure-skip-tls-verify": "FLAG"})).replace("FLAG", written)
    assert select(text).cluster.insecure_skip_tls_verify


def test_only_the_first_document_is_read() -> None:
    text = KUBECTL.replace("{token}", "t")
    assert parse_kubeconfig(f"---\n---\n{text}".encode(), PATH).is_empty
    assert select("# comment\n---\n" + text).user.token == "t"
    assert select(json.dumps(kubeconfig({"token": "t"})) + "\ntext: after\n").user.token == "t"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_mark_is_read(encoding: str) -> None:
    assert select(KUBECTL.replace("{token}", "t").encode(encoding)).user.token == "t"


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("https://10.0.0.1", "https://10.0.0.1"),
        ("HTTPS://API.example:6443/", "https://API.example:6443"),
        ("https://h/k8s/c-1/", "https://h/k8s/c-1"),
        ("https://h?a=b", "https://h"),
        ("https://h/k8s?a=b#c", "https://h/k8s"),
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("https://h.", "https://h."),
        ("10.0.0.1:8080", "http://10.0.0.1:8080"),
        ("localhost:8080/", "http://localhost:8080"),
        ("h", "http://h"),
    ],
)
def test_server_is_read_as_by_kubectl(server: str, url: str) -> None:
    assert select(kubeconfig(server=server)).cluster.server == url


@pytest.mark.parametrize(
    "options", [{"certificate-authority-data": "eA=="}, {"insecure-skip-tls-verify": True}]
)
def test_server_without_scheme_uses_https_if_the_cluster_has_options_for_it(options: dict[str, Any]) -> None:
    assert select(kubeconfig(server="10.0.0.1:6443", **options)).cluster.server == "https://10.0.0.1:6443"
    assert select(kubeconfig(server="http://h", **options)).cluster.server == "http://h"


@pytest.mark.parametrize(
    "server",
    [
        *["//h", "https:/h", "https:h", "h/path", "https://", "ftp://h", " https://h", "https://h\n"],
        *["https://h:0", "https://h:70000", "https://h/%zz", "https://.vm", "https://a..b", "https://[h"],
        *[f"https://{'x' * 64}", "https://me:hunter22@h", "me:hunter22@h"],
        *["https://hunter22@h", "https://:hunter22@h"],
    ],
)
def test_invalid_server_is_an_error_at_its_field(server: str) -> None:
    message = error_of(kubeconfig(server=server))
    assert message.startswith(f"kubeconfig {PATH}:4: clusters[dev].cluster.server: ")
    assert "hunter22" not in message


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("api.example", "api.example"),
        ("api.example.", "api.example"),
        ("a_b", "a_b"),
        ("127.0.0.1", "127.0.0.1"),
        ("[127.0.0.1]", "127.0.0.1"),
        ("[::1]", "::1"),
    ],
)
def test_tls_server_name_is_a_name_or_an_address(written: str, name: str) -> None:
    assert select(kubeconfig(**{"tls-server-name": written})).cluster.tls_server_name == name


@pytest.mark.parametrize(
    "name", ["a\0b", "x" * 64, "x." * 128, ".vm", "a..b", " a", "bücher.example", "[h]", "[::1", "::1]"]
)
def test_invalid_tls_server_name_is_an_error_at_its_field(name: str) -> None:
    message = error_of(kubeconfig(**{"tls-server-name": name}))
    assert f"kubeconfig {PATH}:" in message
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
        ({"token": "t", "client-key": "k.pem"}, {"token"}),
        ({"token": "t", "client-key": "k.pem", "client-key-data": "aw=="}, {"token"}),
        ({"token": "t", **exec_user("x", interactiveMode="Always")}, {"token"}),
        ({"token": "t", "unknown": "x"}, {"token"}),
        ({"exec": {**PLUGIN["exec"], "args": [None, "a"]}}, {"plugin"}),
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


def test_json_indented_with_tabs_is_read() -> None:
    assert select(json.dumps(kubeconfig({"token": "t"}), indent="\t")).user.token == "t"


def test_byte_order_mark_is_skipped() -> None:
    assert select(b"\xef\xbb\xbf" + yaml.safe_dump(kubeconfig({"token": "t"})).encode()).user.token == "t"


def test_anchors_aliases_and_merge_keys_are_supported() -> None:
    selection = select(
        "x: &base {server: 'https://base', tls-server-name: base}\n"
        "y: &more {server: 'https://more', proxy-url: 'http://proxy'}\n"
        "current-context: dev\n"
        "clusters: [{name: dev, cluster: {<<: [*base, *more], tls-server-name: own}}]\n"
        "users: [{name: dev, user: {token: &token t}}]\n"
        "contexts: [{name: dev, context: {cluster: dev, user: dev, namespace: *token}}]\n"
    )
    cluster = selection.cluster
    assert (cluster.server, cluster.tls_server_name, cluster.proxy_url) == (
        "https://base", "own", "http://proxy",
    )  # fmt: skip
    assert (selection.user.token, selection.namespace) == ("t", "t")


def test_last_value_of_a_duplicate_field_counts() -> None:
    text = yaml.safe_dump(kubeconfig({"token": "first"})).replace("token: first", "token: 5\n    token: last")
    assert select(text).user.token == "last"


def test_extension_for_plugins_is_plain_json() -> None:
    text = yaml.safe_dump(kubeconfig({"token": "t"}, extensions=[])).replace(
        "extensions: []",
        "extensions: [{name: client.authentication.k8s.io/exec,"
        " extension: {yes: [1, ~, 2.5], 3: {<<: {a: b}}}}]",
    )
    assert select(text).cluster.exec_extension == {"true": [1, None, 2.5], "3": {"a": "b"}}


@pytest.mark.parametrize(
    "text", ["", "---\n", "# nothing\n", "apiVersion: v1\nkind: Config\n", "clusters: []"]
)
def test_file_without_entries_is_empty_but_valid(text: str) -> None:
    assert parse_kubeconfig(text.encode(), PATH).is_empty


@pytest.mark.parametrize(
    "text", ["current-context: a", *(f"{key}: [{{name: a}}]" for key in ("clusters", "contexts", "users"))]
)
def test_file_with_any_entry_is_not_empty(text: str) -> None:
    assert not parse_kubeconfig(text.encode(), PATH).is_empty


def test_mistake_in_the_entry_of_another_context_has_no_effect() -> None:
    config = kubeconfig({"token": "t"})
    config["users"].append({"name": "broken", "user": {"token": 5}})
    config["clusters"].append({"name": "broken", "cluster": ["no"]})
    assert select(config).user.token == "t"


# Merging


def test_first_file_wins_each_entry_as_a_whole() -> None:
    first = parse_kubeconfig(yaml.safe_dump(kubeconfig({"token": "first"})).encode(), "/a/config")
    second = parse_kubeconfig(
        yaml.safe_dump(kubeconfig({"username": "u"}, **{"tls-server-name": "x"})).encode(), "/b/config"
    )
    selection = select_context(merge_kubeconfigs([first, second]), None)
    assert selection.user.token == "first"
    assert selection.user.username is None
    assert selection.cluster.tls_server_name is None


def test_cluster_and_user_of_a_context_may_be_in_other_files() -> None:
    config = kubeconfig({"tokenFile": "token"}, **{"certificate-authority": "ca.pem"})
    files = [
        parse_kubeconfig(yaml.safe_dump({key: config[key]}).encode(), f"/{key}/config")
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
        result.append(parse_kubeconfig(yaml.safe_dump(config).encode(), f"/{number}/config"))
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


@given(files())
def test_merging_in_steps_equals_merging_at_once(configs: list[Kubeconfig]) -> None:
    assert merge_kubeconfigs(
        [merge_kubeconfigs(configs[:1]), merge_kubeconfigs(configs[1:])]
    ) == merge_kubeconfigs(configs)


# Errors


def error_of(config: dict[str, Any] | str | bytes, context: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        select(config, context)
    return str(caught.value)


@pytest.mark.parametrize("text", ["just words", "- a\n- b\n", "42", "true"])
def test_kubeconfig_must_be_a_mapping(text: str) -> None:
    assert f"kubeconfig {PATH}: must be a mapping with clusters, contexts and users" in error_of(text)


@pytest.mark.parametrize("field", ["kind: Pod", "apiVersion: apps/v1"])
def test_another_kind_of_file_is_recognized(field: str) -> None:
    assert "Check that this is the right file." in error_of(f"{field}\nclusters: []\n")


def test_error_for_a_file_that_is_not_utf8_names_the_line() -> None:
    assert f"kubeconfig {PATH}:2: not valid UTF-8" in error_of(b"a: b\nc: \xff\xfe")


@pytest.mark.parametrize(
    "text",
    [
        "users:\n- name: u\n  user: {token: *hunter22}\n",
        "users:\n- name: u\n  user: {token: !hunter22 x}\n",
        "users:\n- name: u\n  user: {token: 'hunter22}\n",
        "users:\n- name: u\n  user: {token: hunter22\n",
        "users:\n- name: u\n\tuser: {token: hunter22}\n",
        "users: hunter22: x\n",
        "token: hunter22\n\x00",
        "token: !!timestamp hunter22\n",
        "token: !!int ''\n",
        "token: !!bool hunter22\n",
        "? [hunter22]\n: x\n",
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


def test_yaml_error_names_line_and_column() -> None:
    assert ":2: not valid YAML (column 9)" in error_of("users:\n  user: *x\n")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_raises_an_error(opening: str) -> None:
    assert "not valid YAML" in error_of(opening * 100_000)


def test_duplicate_name_in_one_file_is_reported() -> None:
    config = kubeconfig()
    config["users"].append({"name": "dev", "user": {}})
    assert "users[dev]: the name 'dev' is used twice in users" in error_of(config)


@pytest.mark.parametrize("current", [None, ""])
def test_error_for_a_missing_current_context_lists_the_contexts(current: str | None) -> None:
    config = kubeconfig()
    config["contexts"].append({"name": "prod", "context": {"cluster": "dev"}})
    config["current-context"] = current
    assert "no current-context is set; the file has: 'dev', 'prod'" in error_of(config)


def test_error_for_an_unknown_context_lists_the_contexts() -> None:
    assert "there is no context 'x'; there are: 'dev'" in error_of(kubeconfig(), "x")


@pytest.mark.parametrize("context", [None, "dev"])
def test_kubeconfig_without_contexts_is_reported(context: str | None) -> None:
    config = {**kubeconfig(), "contexts": []}
    assert error_of(config, context).startswith(f"kubeconfig {PATH}: no contexts are defined. Add one with")


def test_misspelt_user_of_a_context_is_reported() -> None:
    config = kubeconfig({"token": "t"})
    config["contexts"][0]["context"] = {"cluster": "dev", "User": "dev"}
    assert "contexts[dev].context.User: not a field of a kubeconfig; write it as user" in error_of(config)


def test_half_of_a_surrogate_pair_is_reported() -> None:
    assert "users[dev].user.username: contains half of a UTF-16 surrogate pair" in error_of(
        json.dumps(kubeconfig({"username": "\ud800"}))
    )
    assert "users[dev].user.as-user-extra: contains half of a UTF-16 surrogate pair" in error_of(
        json.dumps(kubeconfig({"as": "u", "as-user-extra": {"\ud800": ["x"]}}))
    )


def test_preferences_that_are_not_a_mapping_are_reported() -> None:
    assert "preferences: must be a mapping, not a list" in error_of(
        json.dumps({**kubeconfig({"token": "t"}), "preferences": []})
    )


def test_unknown_current_context_is_reported() -> None:
    config = kubeconfig()
    config["current-context"] = "gone"
    assert "current-context: there is no context 'gone'; there are: 'dev'" in error_of(config)


@pytest.mark.parametrize("kind", ["cluster", "user"])
def test_error_for_an_unknown_cluster_or_user_lists_the_existing_ones(kind: str) -> None:
    config = kubeconfig()
    config["contexts"][0]["context"][kind] = "x"
    assert f"contexts[dev].context.{kind}: there is no {kind} 'x'; there are: 'dev'" in error_of(config)


def test_context_without_a_cluster_is_reported() -> None:
    config = kubeconfig()
    del config["contexts"][0]["context"]["cluster"]
    assert "contexts[dev].context: has no cluster" in error_of(config)


def test_cluster_without_a_server_is_reported() -> None:
    config = kubeconfig()
    config["clusters"][0]["cluster"] = {}
    assert "clusters[dev].cluster: has no server" in error_of(config)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({"token": 12345}, "users[dev].user.token: must be a string, not a number. Put it in quotes."),
        ({"token": True}, "token: must be a string, not a boolean"),
        ({"token": {"a": "b"}}, "token: must be a string, not a mapping"),
        ({"username": ["a"]}, "username: must be a string, not a list"),
        ("hunter22", "users[dev].user: must be a mapping, not a string"),
        ({"client-certificate-data": "%%%"}, "client-certificate-data: not valid base64"),
        ({"client-certificate-data": "ä"}, "client-certificate-data: not valid base64"),
        ({"client-certificate-data": "abc"}, "client-certificate-data: not valid base64"),
        ({"client-certificate": "c.pem"}, "has a client-certificate without a client-key. Add client-key."),
        ({"client-key": "k.pem"}, "has a client-key without a client-certificate. Add client-certificate."),
        ({"token": "t", "username": "u"}, "has both a token and username/password"),
        ({"token": "t", "password": "p"}, "has both a token and username/password"),
        ({"tokenFile": "t", "username": "u"}, "has both a token and username/password"),
        ({"password": "hunter22"}, "has a password without a username. Add username."),
        ({"token": "t", "client-certificate": "c.pem"}, "has a client-certificate without a client-key"),
        (
            {"client-certificate": "c", "client-certificate-data": "aw==", "client-key": "k"},
            "has both client-certificate and client-certificate-data. Remove one of them.",
        ),
        (
            {"client-certificate": "c", "client-key-data": "aw==", "client-key": "k"},
            "has both client-key and client-key-data. Remove one of them.",
        ),
        ({"Token": "hunter22"}, "user.Token: not a field of a kubeconfig; write it as token"),
        (
            {"token": "t", "token_file": "x"},
            "user.token_file: not a field of a kubeconfig; write it as tokenFile",
        ),
        (
            {"clientKeyData": "hunter22"},
            "user.clientKeyData: not a field of a kubeconfig; write it as client-key",
        ),
        ({"token": "t", "As": "u"}, "user.As: not a field of a kubeconfig; write it as as"),
        ({"tokn": "hunter22"}, "has no credentials but an unknown field. Credentials are client-certificate"),
        ({"hunter22": "x"}, "has no credentials but an unknown field"),
        ({"as": "x\n"}, "user.as: contains a line break or a control character. Remove it."),
        ({"as": "u", "as-uid": "\x7f"}, "user.as-uid: contains a line break"),
        ({"as": "u", "as-groups": ["a", "x\r"]}, "user.as-groups: contains a line break"),
        ({"as": "u", "as-user-extra": {"a": ["x\n"]}}, "user.as-user-extra: contains a line break"),
        ({"as": "u", "as-user-extra": {"a": "b"}}, "as-user-extra.a: must be a list, not a string"),
        ({"as": " "}, "without `as`"),
        ({"as-groups": ["a"]}, "without `as`"),
        ({"as-uid": "7"}, "without `as`"),
        ({"as-user-extra": {"a": ["b"]}}, "without `as`"),
        ({"as-user-extra": {"a": []}}, "without `as`"),
        ({"as-groups": "a"}, "as-groups: must be a list, not a string"),
        ({**exec_user("x"), "auth-provider": {"name": "oidc"}}, "has both exec and auth-provider"),
        ({"auth-provider": {}}, "users[dev].user.auth-provider: has no name"),
        ({"exec": {"apiVersion": EXEC_V1}}, "users[dev].user.exec: has no command"),
        ({"exec": {"command": "x"}}, "exec.apiVersion: None is not supported"),
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
            exec_user("x", interactiveMode=None),
            "has no interactiveMode, which client.authentication.k8s.io/v1",
        ),
        ({"token": "t", **exec_user("x", interactiveMode=None)}, "has no interactiveMode"),
        (exec_user("x", Args=["a"]), "exec.Args: not a field of a kubeconfig; write it as args"),
        (exec_user("x", args=["hunter22\0"]), "exec: contains a null character"),
        (exec_user("x", env=[{"name": "A=B", "value": "v"}]), "env['A=B'].name: contains ="),
        (exec_user("x", args=[1]), "exec.args[0]: must be a string, not a number"),
        (exec_user("x", env=[{"value": "v"}]), "exec.env[0]: has no name"),
        (exec_user("x", env=["A=b"]), "exec.env[0]: must be a mapping, not a string"),
        (exec_user("x", provideClusterInfo="yes"), "provideClusterInfo: must be a boolean, not a string"),
    ],
)
def test_error_for_an_invalid_user_names_line_and_field(user: Any, expected: str) -> None:
    config = kubeconfig()
    config["users"][0]["user"] = user
    message = error_of(config)
    assert re.match(rf"kubeconfig {PATH}:\d+: users\[dev\]\.user", message)
    assert expected in message
    assert "hunter22" not in message


def test_error_for_json_names_the_field_without_a_line() -> None:
    assert error_of(json.dumps(kubeconfig({"token": 5}))) == (
        f"kubeconfig {PATH}: users[dev].user.token: must be a string, not a number. Put it in quotes."
    )


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (
            {"insecure-skip-tls-verify": True, "certificate-authority": "ca"},
            "certificate-authority and insecure-skip-tls-verify: true contradict each other",
        ),
        (
            {"insecure-skip-tls-verify": "true"},
            "insecure-skip-tls-verify: must be a boolean, not a string. Write true or false, without quotes.",
        ),
        ({"certificate-authority-data": "?"}, "certificate-authority-data: not valid base64"),
        (
            {"certificate-authority": "ca", "certificate-authority-data": "aw=="},
            "has both certificate-authority and certificate-authority-data. Remove one of them.",
        ),
        (
            {"certificateAuthorityData": "aw=="},
            "certificateAuthorityData: not a field of a kubeconfig; write it as certificate-authority-data",
        ),
        ({"proxy-url": "socks5://p:1"}, "proxy-url: SOCKS proxies (socks5) are not supported"),
        ({"proxy-url": "me:hunter22"}, "proxy-url: not a valid URL. Write it as http://proxy:3128."),
        ({"extensions": {}}, "extensions: must be a list, not a mapping"),
    ],
)
def test_error_for_an_invalid_cluster_names_line_and_field(cluster: dict[str, Any], expected: str) -> None:
    message = error_of(kubeconfig(**cluster))
    assert re.match(rf"kubeconfig {PATH}:\d+: clusters\[dev\]\.cluster", message)
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("users: {}", "users: must be a list, not a mapping"),
        ("users: [5]", "users[0]: must be a mapping, not a number"),
        ("users: [{user: {}}, {user: {}}]", "users[1]: the name '' is used twice in users"),
        (
            "users: [{name: no, user: {}}]",
            "users[0].name: must be a string, not a boolean. Put it in quotes.",
        ),
        ("current-context: 5", "current-context: must be a string"),
    ],
)
def test_error_for_an_invalid_list_names_the_item(text: str, expected: str) -> None:
    assert expected in error_of(text)


# No secret is ever shown

SECRETS = {
    "token": "hunter22-token",
    "tokenFile": "token",
    "username": "hunter22-name",
    "password": "hunter22-password",
    "client-certificate-data": base64_of(b"hunter22-certificate"),
    "client-key-data": base64_of(b"hunter22-key"),
    "exec": {
        "apiVersion": EXEC_V1,
        "command": "x",
        "args": ["--secret", "hunter22-arg"],
        "env": [{"name": "SECRET", "value": "hunter22-variable"}],
    },
    "auth-provider": {
        "name": "oidc",
        "config": {"id-token": "hunter22-id", "client-secret": "hunter22-oidc"},
    },
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.dates(),
    st.just([]),
    st.just({}),
    st.just("%"),
    st.text(max_size=3),
)


@given(st.sets(st.sampled_from(sorted(SECRETS))), st.data())
@example(set(), None)
def test_no_error_and_no_repr_shows_a_secret(names: set[str], data: st.DataObject | None) -> None:
    """Whichever value of a kubeconfig full of secrets is replaced by junk, nothing shows a secret."""
    config = kubeconfig(copy.deepcopy({name: SECRETS[name] for name in names}))
    if data is not None:
        parents: list[Any] = [config]
        for each in parents:
            children: Any = each.values() if isinstance(each, dict) else each
            parents.extend(child for child in children if isinstance(child, (dict, list)) and child)
        parent: Any = data.draw(st.sampled_from(parents))
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        parent[data.draw(st.sampled_from(keys))] = data.draw(JUNK)
    try:
        shown = repr(select(config))
    except ConfigurationError as error:
        shown = "".join(traceback.format_exception(error)) + repr(error)
    shown = shown.replace("-----", "")
    assert "hunter22" not in shown
    assert base64_of(b"hunter22-key") not in shown


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_content_is_valid_or_raises_a_configuration_error(content: bytes) -> None:
    with suppress(ConfigurationError):
        select(content)
