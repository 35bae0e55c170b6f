"""Errors for the failure responses of an API server."""

import json
import re
from contextlib import aclosing
from typing import Any

import pytest
import yaml

from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)
from aioresolve.testing import Answer

from .loopback import Loopback, outcome
from .samples import watch_policy

pytestmark = pytest.mark.usefixtures("no_retries")


def status(code: int, message: str, reason: str = "", **details: object) -> bytes:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code}
    return json.dumps({**body, "message": message, "reason": reason, "details": details}).encode()


async def error_for(loopback: Loopback, response: Answer, **arguments: Any) -> ResolveError:
    """Return the error of a call for `app=train` in `ml`, whose requests get this response."""
    loopback.server.clear_faults()
    loopback.server.inject(response, times=None)
    arguments = {"namespace": "ml", "not_running": "skip", "timeout": 10.0, **arguments}
    resolver = loopback.resolver({"worker": "app=train"}, **arguments)
    error = await outcome(resolver.cluster_spec(), within=30)
    assert isinstance(error, ResolveError)
    assert loopback.server.url in str(error)
    return error


async def denied(loopback: Loopback, message: str, **arguments: Any) -> ForbiddenError:
    error = await error_for(loopback, Answer(403, status(403, message, "Forbidden")), **arguments)
    assert isinstance(error, ForbiddenError)
    return error


async def test_each_status_has_its_class_its_hint_and_whether_it_is_retryable(loopback: Loopback) -> None:
    scope = "selector 'app=train' in namespace 'ml'"
    for code, kind, retryable, hint in (
        (400, ConfigurationError, False, "Correct the selector 'app=train'."),
        (
            401,
            UnauthorizedError,
            False,
            "context 'loopback'. Log in again, or renew the token there.",
        ),
        (404, APIError, False, "there is no pods API at that address. Correct the server in the kubeconfig."),
        (410, APIError, False, "expired faster than they could be read. Try again."),
        (418, APIError, False, "Check that this is a Kubernetes API server, and check its log."),
        (429, APIError, True, "the server is overloaded or unhealthy. Try again later."),
        (503, APIError, True, "the server is overloaded or unhealthy. Try again later."),
    ):
        error = await error_for(loopback, Answer(code, status(code, "message of the server", "Why")))
        assert (type(error), error.retryable) == (kind, retryable)
        assert f"{scope} ('message of the server')" in str(error)
        assert str(error).endswith(hint)
        if isinstance(error, APIError):
            assert (error.host, error.scope) == (loopback.server.url, scope)
            assert (error.status, error.reason) == (code, "Why")


async def test_statuses_after_which_the_same_request_may_succeed_are_retryable(loopback: Loopback) -> None:
    codes = (*range(404, 432), *range(500, 506))
    retryable = [code for code in codes if (await error_for(loopback, Answer(code, b""))).retryable]
    assert retryable == [408, 425, 429, 500, 502, 503, 504]


async def test_error_for_a_403_has_verb_scope_and_manifest(loopback: Loopback) -> None:
    user = "system:serviceaccount:ml:trainer"
    error = await denied(
        loopback, f'pods is forbidden: User "{user}" cannot list resource "pods" in the namespace "ml"'
    )
    assert f"'{user}' may not list pods in namespace 'ml'" in str(error)
    assert error.manifest in str(error)
    role, binding = yaml.safe_load_all(error.manifest)
    assert role["kind"] == "Role"
    assert role["metadata"] == {"name": "aioresolve-list", "namespace": "ml"}
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "trainer", "namespace": "ml"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["metadata"] == {"name": "aioresolve-list-ml-trainer-1669fd81", "namespace": "ml"}


async def test_error_for_a_403_in_all_namespaces_also_recommends_one_namespace(loopback: Loopback) -> None:
    message = 'pods is forbidden: User "limited" cannot list resource "pods" in API group ""'
    error = await denied(loopback, message, namespace=None)
    assert "or pass `namespace=`" in str(error)
    role, binding = yaml.safe_load_all(error.manifest)
    assert (role["kind"], binding["kind"]) == ("ClusterRole", "ClusterRoleBinding")
    user = {"kind": "User", "name": "limited", "apiGroup": "rbac.authorization.k8s.io"}
    assert binding["subjects"] == [user]


async def test_error_for_a_403_of_gke_also_names_the_role_of_iam(loopback: Loopback) -> None:
    message = 'pods is forbidden: User "ada@example.com" cannot list resource "pods" in API group "" in the'
    required = 'namespace "ml": requires one of ["container.pods.list"] permission(s).'
    assert "or grant the user roles/container.viewer" in str(await denied(loopback, f"{message} {required}"))
    assert "container.viewer" not in str(await denied(loopback, message))


async def test_error_for_a_watch_that_is_denied_has_both_verbs(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    loopback.server.verbs["alice"] = {"list"}
    resolver = loopback.resolver(namespace="ml")
    resolver.watch_policy = watch_policy()
    async with aclosing(resolver.watch()) as states:
        assert (await anext(states)).spec.num_tasks("worker") == 1
        with pytest.raises(ForbiddenError, match="user 'alice' may not watch pods") as caught:
            await anext(states)
    role, binding = yaml.safe_load_all(caught.value.manifest)
    assert role["metadata"]["name"] == binding["roleRef"]["name"] == "aioresolve-list-watch"
    assert role["rules"][0]["verbs"] == ["list", "watch"]


async def test_error_for_a_403_without_a_user_says_that_no_user_is_known(loopback: Loopback) -> None:
    for message in ('pods is forbidden: User "system:anonymous" cannot list', "blocked by the policy"):
        error = await denied(loopback, message)
        assert f"({message!r}): it knows no user who sent the request. Check that the" in str(error)
        assert error.manifest == ""


async def test_users_have_different_bindings_and_cannot_inject_yaml(loopback: Loopback) -> None:
    users = ["a/b", "a@c", "system:serviceaccount:ml:x", "ml-x", "x" * 300, "x" * 301, 'x"}\nkind: Secret']
    names = set()
    for user in (json.dumps(user)[1:-1] for user in users):
        error = await denied(loopback, f'User "{user}" cannot list resource "pods"')
        binding = list(yaml.safe_load_all(error.manifest))[1]
        names.add(binding["metadata"]["name"])
        assert binding["subjects"][0]["name"] == user.rpartition(":")[2] if "system" in user else user
    assert len(names) == len(users)
    assert all(re.fullmatch("aioresolve-list-[A-Za-z0-9.-]{1,72}", name) for name in names)


async def test_error_for_a_403_for_something_else_than_reading_pods_quotes_the_server(
    loopback: Loopback,
) -> None:
    for action, hint in (
        ('impersonate resource "users"', "Or remove the impersonation (`as` in the kubeconfig, or"),
        ('list resource "widgets"', "Have a cluster administrator grant user 'limited' that permission."),
    ):
        message = f'it is forbidden: User "limited" cannot {action} in API group "" at the cluster scope'
        error = await denied(loopback, message)
        assert message in str(error)
        assert "may not" not in str(error)
        assert hint in str(error)
        assert error.manifest == ""


async def test_retry_after_is_read_from_the_header_or_else_from_the_status_object(loopback: Loopback) -> None:
    body = status(429, "busy", retryAfterSeconds=3000)
    for response, seconds in (
        (Answer(429, body), 3000.0),
        (Answer(429, body, {"Retry-After": "4000"}), 4000.0),
        (Answer(429, b"busy"), None),
    ):
        error = await error_for(loopback, response)
        assert isinstance(error, APIError)
        assert error.retry_after == seconds


async def test_server_that_gives_no_reason_for_a_400_may_expect_https(loopback: Loopback) -> None:
    error = await error_for(loopback, Answer(400, b"Client sent an HTTP request to an HTTPS server."))
    assert isinstance(error, ProtocolError)
    assert str(error).endswith("and whether it expects https.")


async def test_message_of_the_server_is_truncated_and_other_bodies_are_not_quoted(loopback: Loopback) -> None:
    assert len(str(await error_for(loopback, Answer(501, status(501, "x" * 100_000))))) < 1_000
    for body in (b"", b"<html>token</html>", b"[]", b"\xff"):
        assert "no reason given" in str(await error_for(loopback, Answer(503, body)))
