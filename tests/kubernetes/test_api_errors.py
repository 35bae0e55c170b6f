"""Errors for the failure responses of an API server."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from aioresolve._core.http import Response
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)
from aioresolve.kubernetes.api.errors import (
    LIST_VERBS,
    WATCH_VERBS,
    error_from_response,
    error_from_watch_event,
    error_from_watch_response,
    is_expired,
    rbac_manifest,
)
from aioresolve.kubernetes.api.objects import PodQuery, Status

HOST = "https://10.0.0.1:6443"


def status(code: int, message: str, reason: str = "", **details: object) -> bytes:
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }
    ).encode()


def error_for(response: Response, query: PodQuery | None = None) -> ResolveError:
    return error_from_response(response, query or PodQuery("app=a", "ml"), host=HOST, source="kubeconfig /k")


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [(401, UnauthorizedError, False), (403, ForbiddenError, False), (0, APIError, True)],
)
def test_error_event_of_a_watch_has_the_type_of_its_code(
    code: int, kind: type[APIError], retryable: bool
) -> None:
    event = Status(message="no", reason="Why", code=code)
    query = PodQuery("app=a", "ml")
    error = error_from_watch_event(event, query, host=HOST, source="a file")
    assert type(error) is kind
    assert isinstance(error, APIError)
    assert error.retryable is retryable
    assert (error.host, error.scope, error.status) == (HOST, query.scope, code or 500)
    assert error.reason == "Why"


@pytest.mark.parametrize(
    ("code", "kind", "retryable", "hint"),
    [
        (400, ConfigurationError, False, "Correct the selector 'app=a'."),
        (
            401,
            UnauthorizedError,
            False,
            "from kubeconfig /k, also after they were renewed. Log in again, or renew the token there.",
        ),
        (404, APIError, False, "Correct the server in the kubeconfig."),
        (410, APIError, False, "Try again."),
        (418, APIError, False, "Check that this is a Kubernetes API server, and check its log."),
        (429, APIError, True, "Try again later."),
        (503, APIError, True, "Try again later."),
    ],
)
def test_each_status_has_its_error_class_its_hint_and_whether_it_is_retryable(
    code: int, kind: type[ResolveError], retryable: bool, hint: str
) -> None:
    error = error_for(Response(code, status(code, "message of the server")))
    assert type(error) is kind
    assert error.retryable is retryable
    assert HOST in str(error)
    assert "selector 'app=a' in namespace 'ml' ('message of the server')" in str(error)
    assert str(error).endswith(hint)


def test_error_for_a_403_has_verb_scope_and_manifest() -> None:
    message = (
        'pods is forbidden: User "system:serviceaccount:ml:trainer" cannot list resource "pods"'
        ' in the namespace "ml"'
    )
    error = error_for(Response(403, status(403, message, "Forbidden")))
    assert isinstance(error, ForbiddenError)
    assert "'system:serviceaccount:ml:trainer' may not list pods in namespace 'ml'" in str(error)
    assert error.manifest in str(error)
    role, binding = yaml.safe_load_all(error.manifest)
    assert role["kind"] == "Role"
    assert role["metadata"]["namespace"] == "ml"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "trainer", "namespace": "ml"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["metadata"] == {"name": "aioresolve-list-ml-trainer-1669fd81", "namespace": "ml"}


def test_error_for_a_403_in_all_namespaces_also_recommends_one_namespace() -> None:
    message = (
        'pods is forbidden: User "limited" cannot list resource "pods" in API group "" at the cluster scope'
    )
    error = error_for(Response(403, status(403, message)), PodQuery("app=a"))
    assert isinstance(error, ForbiddenError)
    assert "or pass `namespace=`" in str(error)
    role, binding = yaml.safe_load_all(error.manifest)
    assert (role["kind"], binding["kind"]) == ("ClusterRole", "ClusterRoleBinding")
    assert binding["subjects"] == [
        {"kind": "User", "name": "limited", "apiGroup": "rbac.authorization.k8s.io"}
    ]


def test_error_for_a_403_of_an_anonymous_user_says_that_no_user_is_known() -> None:
    for message in ('pods is forbidden: User "system:anonymous" cannot list', "blocked by the policy"):
        error = error_for(Response(403, status(403, message)))
        assert isinstance(error, ForbiddenError)
        assert (
            f"({message!r}): it knows no user who sent the request. Check that the kubeconfig has a user"
            in str(error)
        )
        assert error.manifest == ""


def test_two_users_have_different_bindings() -> None:
    pairs = [("a/b", "a@c"), ("system:serviceaccount:ml:x", "ml-x"), ("x" * 300, "x" * 301)]
    for users in pairs:
        names = {list(yaml.safe_load_all(rbac_manifest(user, "ml")))[1]["metadata"]["name"] for user in users}
        assert len(names) == 2
        assert all(re.fullmatch("aioresolve-list-[A-Za-z0-9.-]{1,200}", name) for name in names)


def test_manifest_to_list_leaves_the_objects_that_permit_to_watch_unchanged() -> None:
    (role, binding), (watch_role, watch_binding) = (
        yaml.safe_load_all(rbac_manifest("alice", "ml", verbs)) for verbs in (LIST_VERBS, WATCH_VERBS)
    )
    assert role["metadata"]["name"] == binding["roleRef"]["name"] == "aioresolve-list"
    assert watch_role["metadata"]["name"] == watch_binding["roleRef"]["name"] == "aioresolve-list-watch"
    assert binding["metadata"]["name"] != watch_binding["metadata"]["name"]


def test_user_name_cannot_inject_yaml_into_the_manifest() -> None:
    roles = list(yaml.safe_load_all(rbac_manifest('x"}\nkind: Secret', None)))
    assert roles[1]["subjects"][0]["name"] == 'x"}\nkind: Secret'


def test_user_is_named_as_it_is_and_not_as_the_server_escaped_it() -> None:
    for escaped, user in ((r"a\"b\\c\t\u00ad", 'a"b\\c\t\u00ad'), (r"\xff", r"\xff"), (r"\ud800", r"\ud800")):
        error = error_for(Response(403, status(403, f'User "{escaped}" cannot list resource "pods"')))
        assert isinstance(error, ForbiddenError)
        assert list(yaml.safe_load_all(error.manifest))[1]["subjects"][0]["name"] == user


def test_error_for_a_403_for_something_else_than_reading_pods_quotes_the_server() -> None:
    for denied, hint in (
        ('impersonate resource "users"', "Or remove the impersonation (`as` in the kubeconfig, or"),
        ('list resource "widgets"', "Have a cluster administrator grant user 'limited' that permission."),
    ):
        message = f'it is forbidden: User "limited" cannot {denied} in API group "" at the cluster scope'
        error = error_for(Response(403, status(403, message)))
        assert isinstance(error, ForbiddenError)
        assert message in str(error)
        assert "may not" not in str(error)
        assert hint in str(error)
        assert error.manifest == ""


def test_retry_after_is_read_from_the_header_or_else_from_the_status_object() -> None:
    body = status(429, "busy", retryAfterSeconds=3)
    for response, seconds in (
        (Response(429, body), 3.0),
        (Response(429, body, retry_after=0.0), 0.0),
        (Response(429, b"busy"), None),
    ):
        error = error_for(response)
        assert isinstance(error, APIError)
        assert error.retry_after == seconds


def test_redirect_is_an_error_that_names_its_location() -> None:
    for code in (300, 399):
        error = error_for(Response(code, b"", location="https://elsewhere.example"))
        assert isinstance(error, ProtocolError)
        assert "redirects selector 'app=a' in namespace 'ml' to https://elsewhere.example" in str(error)
    assert "in namespace 'ml' to nowhere;" in str(error_for(Response(302, b"")))


def test_server_that_gives_no_reason_for_a_400_may_expect_https() -> None:
    error = error_for(Response(400, b"Client sent an HTTP request to an HTTPS server."))
    assert isinstance(error, ProtocolError)
    assert str(error).endswith("and whether it expects https.")


def test_watch_that_cannot_be_resumed_is_expired() -> None:
    query = PodQuery("app=a", "ml")
    for code in (400, 410):
        response = Response(code, status(code, "too old resource version", "Expired"))
        for error in (
            error_from_watch_response(response, query, host=HOST, source="a file"),
            error_from_watch_event(Status("too old", "Expired", code), query, host=HOST, source="a file"),
        ):
            assert is_expired(error)
            assert isinstance(error, APIError)
            assert (error.status, error.reason, error.retryable) == (code, "Expired", False)
            assert "so the pods are listed again" in str(error)


def test_error_for_a_watch_that_is_denied_has_both_verbs() -> None:
    denied = 'pods is forbidden: User "a" cannot watch resource "pods" in API group "" in the namespace "ml"'
    response = Response(403, status(403, denied))
    error = error_from_watch_response(response, PodQuery("app=a", "ml"), host=HOST, source="a file")
    assert isinstance(error, ForbiddenError)
    assert "user 'a' may not watch pods in namespace 'ml'" in str(error)
    assert "verbs: [list, watch]" in error.manifest


def test_body_that_is_not_a_status_object_is_not_quoted() -> None:
    for body in (b"", b"<html>token</html>", b"[]", b"\xff"):
        assert "no reason given" in str(error_for(Response(503, body)))


def test_long_message_of_the_server_is_truncated() -> None:
    assert len(str(error_for(Response(500, status(500, "x" * 100_000))))) < 1_000


def test_expired_page_is_distinguished_from_an_invalid_selector() -> None:
    page = PodQuery("app=a").page(500, "token")
    assert is_expired(error_for(Response(410, status(410, "too old", "Expired"))))
    assert is_expired(error_for(Response(400, status(400, "invalid continue token")), page))
    assert not is_expired(error_for(Response(400, status(400, "unable to parse requirement"))))
    assert not is_expired(error_for(Response(500, b"")))
