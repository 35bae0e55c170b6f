"""Kubeconfigs: text to values, merging, and every way of being wrong."""

from __future__ import annotations

import copy
import json
import traceback
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError
from aioresolve.kubernetes.auth.kubeconfig import Kubeconfig, Selection, User, merged, parsed, selected

from .kubeconfigs import EXEC_V1, SERVER, base64_of, exec_user, kubeconfig

PATH = "/home/me/.kube/config"
PEM = b"-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n"


def chosen(config: dict[str, Any] | str | bytes, context: str | None = None) -> Selection:
    text = yaml.safe_dump(config) if isinstance(config, dict) else config
    return selected(parsed(text.encode() if isinstance(text, str) else text, PATH), context)


def user_of(user: dict[str, Any]) -> User:
    return chosen(kubeconfig(user)).user


# What a kubeconfig says


def test_the_current_context_is_chosen_with_its_cluster_user_and_namespace() -> None:
    selection = chosen(kubeconfig({"token": "t"}))
    assert selection.context == "dev"
    assert selection.where == f"kubeconfig {PATH}, context 'dev'"
    assert selection.namespace == "ml"
    assert selection.cluster.server == SERVER
    assert selection.user.token == "t"


def test_a_context_can_be_asked_for_by_name() -> None:
    config = kubeconfig({"token": "t"})
    config["contexts"].append({"name": "other", "context": {"cluster": "dev"}})
    selection = chosen(config, "other")
    assert (selection.context, selection.namespace, selection.user.token) == ("other", None, None)


def test_every_field_of_a_cluster_is_read() -> None:
    cluster = chosen(
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
    assert chosen(kubeconfig(**{"insecure-skip-tls-verify": True})).cluster.insecure_skip_tls_verify


def test_relative_paths_are_relative_to_the_file_they_stand_in() -> None:
    selection = chosen(
        kubeconfig(
            {"tokenFile": "token", "client-certificate": "../tls/c.pem", "client-key": "/etc/k.pem"},
            **{"certificate-authority": "ca.pem"},
        )
    )
    user, authority = selection.user, selection.cluster.certificate_authority
    assert user.token_file == "/home/me/.kube/token"
    assert user.client_certificate is not None
    assert user.client_certificate.path == "/home/me/.kube/../tls/c.pem"
    assert user.client_key is not None
    assert user.client_key.path == "/etc/k.pem"
    assert authority is not None
    assert authority.path == "/home/me/.kube/ca.pem"


def test_data_overrides_the_file_of_the_same_kind() -> None:
    authority = chosen(
        kubeconfig(**{"certificate-authority": "ca.pem", "certificate-authority-data": base64_of(PEM)})
    ).cluster.certificate_authority
    assert authority is not None
    assert (authority.path, authority.data) == (None, PEM)


def test_base64_may_be_folded_over_lines() -> None:
    folded = "\n".join(base64_of(PEM)[i : i + 8] for i in range(0, len(base64_of(PEM)), 8))
    authority = chosen(kubeconfig(**{"certificate-authority-data": folded})).cluster.certificate_authority
    assert authority is not None
    assert authority.data == PEM


def test_a_context_without_a_user_is_nobody_in_particular() -> None:
    config = kubeconfig()
    del config["contexts"][0]["context"]["user"]
    user = chosen(config).user
    assert user == User(where=f"kubeconfig {PATH}, context 'dev'")


@pytest.mark.parametrize("user", [None, {}, {"token": ""}, {"token": None}])
def test_empty_fields_are_missing_fields(user: dict[str, Any] | None) -> None:
    config = kubeconfig()
    config["users"][0]["user"] = user
    assert chosen(config).user == User(where=f"kubeconfig {PATH}, user 'dev'")


def test_an_exec_plugin_is_read_and_a_bare_command_left_to_the_path() -> None:
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
        ("./bin/login", "/home/me/.kube/./bin/login"),
        ("bin/login", "/home/me/.kube/bin/login"),
        ("/x/y", "/x/y"),
    ],
)
def test_a_command_with_a_slash_is_relative_to_the_kubeconfig(command: str, path: str) -> None:
    plugin = user_of(exec_user(command)).exec_plugin
    assert plugin is not None
    assert plugin.command == path


def test_an_auth_provider_is_read() -> None:
    provider = user_of({"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}}).auth_provider
    assert provider is not None
    assert (provider.name, dict(provider.config)) == ("oidc", {"id-token": "x"})


def test_impersonation_becomes_headers() -> None:
    user = user_of({"as": "ada", "as-uid": "7", "as-groups": ["math"]})
    assert dict(user.impersonation) == {
        "Impersonate-User": "ada",
        "Impersonate-Uid": "7",
        "Impersonate-Group": "math",
    }


def test_json_indented_by_tabs_is_read() -> None:
    assert chosen(json.dumps(kubeconfig({"token": "t"}), indent="\t")).user.token == "t"


def test_a_byte_order_mark_is_skipped() -> None:
    assert chosen(b"\xef\xbb\xbf" + yaml.safe_dump(kubeconfig({"token": "t"})).encode()).user.token == "t"


@pytest.mark.parametrize(
    "text", ["", "---\n", "# nothing\n", "apiVersion: v1\nkind: Config\n", "clusters: []"]
)
def test_a_file_without_entries_is_empty_and_no_error(text: str) -> None:
    assert parsed(text.encode(), PATH).is_empty


def test_a_mistake_in_another_contexts_entry_is_that_contexts_affair() -> None:
    config = kubeconfig({"token": "t"})
    config["users"].append({"name": "broken", "user": {"token": 5}})
    config["clusters"].append({"name": "broken", "cluster": ["no"]})
    assert chosen(config).user.token == "t"


# Merging


def test_the_first_file_wins_each_entry_whole() -> None:
    first = parsed(yaml.safe_dump(kubeconfig({"token": "first"})).encode(), "/a/config")
    second = parsed(
        yaml.safe_dump(kubeconfig({"username": "u"}, **{"tls-server-name": "x"})).encode(), "/b/config"
    )
    selection = selected(merged([first, second]), None)
    assert selection.user.token == "first"
    assert selection.user.username is None
    assert selection.cluster.tls_server_name is None


def test_a_contexts_cluster_and_user_may_come_from_other_files() -> None:
    config = kubeconfig({"tokenFile": "token"}, **{"certificate-authority": "ca.pem"})
    files = [
        parsed(yaml.safe_dump({key: config[key]}).encode(), f"/{key}/config")
        for key in ("contexts", "users", "clusters", "current-context")
    ]
    selection = selected(merged(files), None)
    assert selection.user.token_file == "/users/token"
    assert selection.cluster.certificate_authority is not None
    assert selection.cluster.certificate_authority.path == "/clusters/ca.pem"
    assert selection.where == "kubeconfig /contexts/config, context 'dev'"


NAMES = st.sampled_from(["a", "b", "c"])


@st.composite
def files(draw: st.DrawFn) -> list[Kubeconfig]:
    """Some kubeconfigs that share names; the token of each user says which file it is of."""
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
        result.append(parsed(yaml.safe_dump(config).encode(), f"/{number}/config"))
    return result


@given(files())
def test_of_each_name_the_first_file_that_has_it_counts(configs: list[Kubeconfig]) -> None:
    together = merged(configs)
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
def test_merging_in_steps_is_merging_at_once(configs: list[Kubeconfig]) -> None:
    assert merged([merged(configs[:1]), merged(configs[1:])]) == merged(configs)


# Everything that can be wrong


def wrong(config: dict[str, Any] | str | bytes, context: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        chosen(config, context)
    return str(caught.value)


@pytest.mark.parametrize("text", ["just words", "- a\n- b\n", "42", "true"])
def test_what_is_no_mapping_is_no_kubeconfig(text: str) -> None:
    assert f"kubeconfig {PATH} is no mapping" in wrong(text)


@pytest.mark.parametrize("field", ["kind: Pod", "apiVersion: apps/v1"])
def test_another_kind_of_file_is_told_apart(field: str) -> None:
    assert "is it the right file?" in wrong(f"{field}\nclusters: []\n")


def test_what_is_not_utf_8_says_at_which_byte() -> None:
    assert f"kubeconfig {PATH} is not UTF-8 (byte 3)" in wrong(b"a: \xff\xfe")


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
        "token: 2024-99-99\n",
        "? [hunter22]\n: x\n",
        '{"token": hunter22',
    ],
)
def test_a_yaml_error_says_where_and_never_quotes_the_line(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^kubeconfig {PATH} is not valid YAML") as caught:
        chosen(text)
    assert "hunter22" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


def test_a_yaml_error_names_line_and_column() -> None:
    assert "at line 2, column 9" in wrong("users:\n  user: *x\n")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_an_error_and_no_crash(opening: str) -> None:
    assert "not valid YAML" in wrong(opening * 100_000)


def test_a_name_that_stands_twice_in_one_file_is_told() -> None:
    config = kubeconfig()
    config["users"].append({"name": "dev", "user": {}})
    assert "users has the name 'dev' twice" in wrong(config)


@pytest.mark.parametrize("current", [None, ""])
def test_without_a_current_context_those_that_exist_are_listed(current: str | None) -> None:
    config = kubeconfig()
    config["contexts"].append({"name": "prod", "context": {"cluster": "dev"}})
    config["current-context"] = current
    assert "no current-context is set; give context= one of: 'dev', 'prod'" in wrong(config)


def test_a_context_that_does_not_exist_lists_those_that_do() -> None:
    assert "there is no context 'x'; there are: 'dev'" in wrong(kubeconfig(), "x")


def test_a_current_context_that_does_not_exist_is_told_as_well() -> None:
    config = kubeconfig()
    config["current-context"] = "gone"
    assert "there is no context 'gone'" in wrong(config)


@pytest.mark.parametrize("kind", ["cluster", "user"])
def test_a_missing_cluster_or_user_is_told_with_those_that_exist(kind: str) -> None:
    config = kubeconfig()
    config["contexts"][0]["context"][kind] = "x"
    assert f"context 'dev': names the {kind} 'x', which is not there; there are: 'dev'" in wrong(config)


def test_a_context_without_a_cluster_is_told() -> None:
    config = kubeconfig()
    del config["contexts"][0]["context"]["cluster"]
    assert "context 'dev': names no cluster" in wrong(config)


def test_a_cluster_without_a_server_is_told() -> None:
    config = kubeconfig()
    config["clusters"][0]["cluster"] = {}
    assert "cluster 'dev': has no server" in wrong(config)


def test_a_server_without_a_scheme_is_told_with_file_and_entry() -> None:
    assert f"kubeconfig {PATH}, cluster 'dev': server is '10.0.0.1:6443'" in wrong(
        kubeconfig(server="10.0.0.1:6443")
    )


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"token": 12345}, "user 'dev': token must be text, not a number; put it in quotes"),
        ({"token": True}, "token must be text, not a boolean"),
        ({"token": {"a": "b"}}, "token must be text, not a mapping"),
        ({"username": ["a"]}, "username must be text, not a list"),
        ("hunter22", "user 'dev': must be a mapping, not a text"),
        ({"client-certificate-data": "%%%"}, "client-certificate-data is not base64"),
        ({"client-certificate-data": "ä"}, "client-certificate-data is not base64"),
        ({"client-certificate-data": "abc"}, "client-certificate-data is not base64"),
        ({"client-certificate": "c.pem"}, "has a client-certificate without its client-key; add it"),
        ({"client-key": "k.pem"}, "has a client-key without its client-certificate; add it"),
        ({"token": "t", "username": "u"}, "has both a token and username/password"),
        ({"tokenFile": "t", "password": "p"}, "has both a token and username/password"),
        ({"as-groups": ["a", "b"], "as": "u"}, "several as-groups"),
        ({"as-user-extra": {"a": ["b"]}, "as": "u"}, "as-user-extra is not supported"),
        ({"as-groups": ["a"]}, "without `as`"),
        ({"as-groups": "a"}, "as-groups must be a list, not a text"),
        ({**exec_user("x"), "auth-provider": {"name": "oidc"}}, "has both exec and auth-provider"),
        ({"auth-provider": {}}, "user 'dev', auth-provider: has no name"),
        ({"exec": {"apiVersion": EXEC_V1}}, "user 'dev', exec: has no command"),
        ({"exec": {"command": "x"}}, "exec: apiVersion is None; known are"),
        (
            exec_user("x", apiVersion="client.authentication.k8s.io/v1alpha1"),
            "apiVersion is 'client.authentication.k8s.io/v1alpha1'; known are",
        ),
        (exec_user("x", interactiveMode="Always"), "interactiveMode is Always"),
        (exec_user("x", interactiveMode="Often"), "interactiveMode is 'Often'; it is one of"),
        (exec_user("x", args=[1]), "exec: an item of args must be text, not a number"),
        (exec_user("x", env=[{"value": "v"}]), "exec: an item of env has no name"),
        (exec_user("x", env=["A=b"]), "exec, env[0]: must be a mapping, not a text"),
        (exec_user("x", provideClusterInfo="yes"), "provideClusterInfo must be true or false"),
    ],
)
def test_a_wrong_user_is_told_with_entry_field_and_mend(user: Any, said: str) -> None:
    config = kubeconfig()
    config["users"][0]["user"] = user
    message = wrong(config)
    assert message.startswith(f"kubeconfig {PATH}, user 'dev'")
    assert said in message
    assert "hunter22" not in message


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (
            {"insecure-skip-tls-verify": True, "certificate-authority": "ca"},
            "has both certificate-authority and insecure-skip-tls-verify: true",
        ),
        (
            {"insecure-skip-tls-verify": "true"},
            "insecure-skip-tls-verify must be true or false (without quotes)",
        ),
        ({"certificate-authority-data": "?"}, "certificate-authority-data is not base64"),
        ({"proxy-url": "socks5://p:1"}, "proxy-url is a SOCKS proxy (socks5), which is not supported"),
        ({"proxy-url": "p"}, "proxy-url is 'p', which is no URL"),
        ({"extensions": {}}, "extensions must be a list, not a mapping"),
    ],
)
def test_a_wrong_cluster_is_told_with_entry_field_and_mend(cluster: dict[str, Any], said: str) -> None:
    message = wrong(kubeconfig(**cluster))
    assert message.startswith(f"kubeconfig {PATH}, cluster 'dev'")
    assert said in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("users: {}", "users must be a list, not a mapping"),
        ("users: [5]", "users[0]: must be a mapping, not a number"),
        ("users: [{user: {}}]", "users[0]: has no name"),
        ("users: [{name: no, user: {}}]", "users[0]: name must be text, not a boolean; put it in quotes"),
        ("current-context: 5", "current-context must be text"),
    ],
)
def test_a_wrong_list_is_told_with_its_place(text: str, said: str) -> None:
    assert said in wrong(text)


# No secret gets out, whatever is wrong

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
    """A kubeconfig full of secrets, one node of it replaced by junk: whatever comes of it is silent."""
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
        shown = repr(chosen(config))
    except ConfigurationError as error:
        shown = "".join(traceback.format_exception(error)) + repr(error)
    shown = shown.replace("-----", "")
    assert "hunter22" not in shown
    assert base64_of(b"hunter22-key") not in shown


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_text_is_more_than_a_configuration_error(content: bytes) -> None:
    with suppress(ConfigurationError):
        chosen(content)
