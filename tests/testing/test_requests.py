"""How the loopback API server parses a request: path, Accept header, query, continue token."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.testing.kubernetes.access import RequestInfo, request_info
from aioresolve.testing.kubernetes.kinds import NODE
from aioresolve.testing.kubernetes.lists import ContinueToken, InvalidTokenError
from aioresolve.testing.kubernetes.options import (
    accepts_gzip,
    included_object,
    list_options,
    negotiate_representation,
)
from aioresolve.testing.kubernetes.statuses import Failure

TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


@pytest.mark.parametrize(
    ("method", "path", "query", "info"),
    [
        ("GET", "/api/v1/pods", {}, RequestInfo("list")),
        ("GET", "/api/v1/pods", {"watch": "true"}, RequestInfo("watch")),
        ("GET", "/api/v1/pods", {"watch": "0"}, RequestInfo("list")),
        ("GET", "/api/v1/namespaces/ml/pods", {}, RequestInfo("list", "ml")),
        ("POST", "/api/v1/namespaces/ml/pods", {}, RequestInfo("create", "ml")),
        ("POST", "/api/v1/pods", {}, RequestInfo("")),
        ("DELETE", "/api/v1/namespaces/ml/pods", {}, RequestInfo("", "ml")),
        ("GET", "/api/v1/namespaces/ml/pods/a", {}, RequestInfo("get", "ml", "a")),
        ("PATCH", "/api/v1/namespaces/ml/pods/a/status", {}, RequestInfo("patch", "ml", "a", "status")),
        ("PUT", "/api/v1/namespaces/ml/pods/a", {}, RequestInfo("update", "ml", "a")),
        ("DELETE", "/api/v1/namespaces/ml/pods/a", {}, RequestInfo("delete", "ml", "a")),
        ("GET", "/api/v1/pods/a", {}, None),
        ("GET", "/api/v1/nodes", {}, RequestInfo("list", kind=NODE)),
        ("GET", "/api/v1/configmaps", {}, None),
        ("GET", "/api/v1/namespaces/ml/pods/a/log", {}, None),
    ],
)
def test_request_info_is_derived_from_the_path(
    method: str, path: str, query: dict[str, str], info: RequestInfo | None
) -> None:
    assert request_info(method, path, query) == info


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "object"),
        ("*/*", "object"),
        ("application/*", "object"),
        (TABLE, "table"),
        ("application/json; as=Table; v=v1; g=meta.k8s.io", "table"),
        (f"{TABLE},application/json", "table"),
        (f"application/json,{TABLE}", "object"),
        (f"application/json;q=0.5,{TABLE};q=0.9", "table"),
        (f"*/*,{TABLE}", "table"),
        ("application/json;as=Table;g=meta.k8s.io;v=v9,application/json", "object"),
        ("application/vnd.kubernetes.protobuf,application/json", "object"),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "metadata"),
        ("application/json;q=x", "object"),
    ],
)
def test_first_acceptable_representation_is_used(accept: str | None, kind: str) -> None:
    assert negotiate_representation(accept, "", None).kind == kind


@pytest.mark.parametrize(
    ("user_agent", "pretty", "indent"),
    [
        ("curl/8.5.0", None, True),
        ("Wget/1.21", None, True),
        ("Mozilla/5.0 (X11)", None, True),
        ("kubectl/v1.32.4 (linux/amd64)", None, False),
        ("aioresolve", None, False),
        ("aioresolve", "true", True),
        ("curl/8.5.0", "false", False),
    ],
)
def test_interactive_clients_get_indented_json(user_agent: str, pretty: str | None, indent: bool) -> None:
    assert negotiate_representation("application/json", user_agent, pretty).indent is indent


def test_accept_clause_can_request_indented_json() -> None:
    assert negotiate_representation("application/json;pretty=1", "", None).indent


@pytest.mark.parametrize(
    ("accept_encoding", "accepted"),
    [("", False), ("identity", False), ("gzip", True), ("deflate, gzip;q=1.0", True), ("br", False)],
)
def test_gzip_needs_an_accept_encoding(accept_encoding: str, accepted: bool) -> None:
    assert accepts_gzip(accept_encoding) is accepted


def test_token_equals_that_of_a_real_server() -> None:
    page = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6ODQ3MCwic3RhcnQiOiIvdHJhaW4tMVx1MDAwMCJ9"
    rest = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoidHJhaW4tMVx1MDAwMCJ9"
    assert ContinueToken(8470, "train-1\0").encode() == page
    assert ContinueToken(-1, "train-1\0").encode(rooted=False) == rest
    assert ContinueToken.decode(page) == ContinueToken(8470, "train-1\0")
    assert ContinueToken.decode(rest) == ContinueToken(-1, "train-1\0")


@given(
    st.integers(min_value=1),
    st.from_regex(r"[a-z0-9]{1,9}(/[a-z0-9-]{1,9})?\0", fullmatch=True),
    st.booleans(),
)
def test_token_round_trips(version: int, start: str, rooted: bool) -> None:
    token = ContinueToken(version, start)
    assert ContinueToken.decode(token.encode(rooted=rooted)) == token


def encode(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gYGB", "continue key is not valid: invalid character '\\x81' looking for beginning of value"),
        ("eHh4", "continue key is not valid: invalid character 'x' looking for beginning of value"),
        ("ey", "continue key is not valid: unexpected end of JSON input"),
        ("ab!d", "continue key is not valid: illegal base64 data at input byte 2"),
        ("abcde", "continue key is not valid: illegal base64 data at input byte"),
        (encode([]), "continue key is not valid: json: cannot unmarshal"),
        (
            encode({"v": "v2"}),
            'continue key is not valid: server does not recognize this encoded version "v2"',
        ),
        (
            encode({"v": "meta.k8s.io/v1", "start": "/a"}),
            "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        ),
        (
            encode({"v": "meta.k8s.io/v1", "rv": 1}),
            "continue key is not valid: encoded start key empty (version meta.k8s.io/v1)",
        ),
        (encode({"v": "meta.k8s.io/v1", "rv": "1", "start": "/a"}), "json: cannot unmarshal"),
        (encode({"v": "meta.k8s.io/v1", "rv": 1, "start": "/../a"}), "continue key is not valid: /../a"),
    ],
)
def test_invalid_tokens_are_rejected(text: str, message: str) -> None:
    with pytest.raises(InvalidTokenError) as caught:
        ContinueToken.decode(text)
    assert message in str(caught.value)


@given(
    st.text(max_size=40)
    | st.binary(max_size=30).map(lambda raw: base64.urlsafe_b64encode(raw).decode().rstrip("="))
)
def test_any_text_is_a_token_or_an_invalid_token_error(text: str) -> None:
    try:
        token = ContinueToken.decode(text)
    except InvalidTokenError:
        return
    assert ContinueToken.decode(token.encode()) == token


def test_list_options_are_parsed_from_the_query() -> None:
    options = list_options(
        "ml", {"limit": "2", "timeoutSeconds": "7", "allowWatchBookmarks": "true"}, watch=False
    )
    assert (options.limit, options.timeout, options.bookmarks) == (2, 7.0, True)
    assert (options.version, options.exact, options.selection.namespace) == (None, False, "ml")
    assert options.selection.is_everything
    assert not list_options(None, {"labelSelector": "a=b"}, watch=False).selection.is_everything


@pytest.mark.parametrize(
    ("query", "version", "exact", "limit"),
    [
        ({}, None, False, 0),
        ({"resourceVersion": "0"}, 0, False, 0),
        ({"resourceVersion": "7"}, 7, False, 0),
        ({"resourceVersion": "7", "limit": "5"}, 7, True, 5),
        ({"resourceVersion": "0", "limit": "5"}, 0, False, 0),
        ({"resourceVersion": "7", "resourceVersionMatch": "Exact"}, 7, True, 0),
        ({"resourceVersion": "7", "resourceVersionMatch": "NotOlderThan", "limit": "5"}, 7, False, 5),
    ],
)
def test_version_is_exact_or_a_minimum(
    query: dict[str, str], version: int | None, exact: bool, limit: int
) -> None:
    options = list_options(None, query, watch=False)
    assert (options.version, options.exact, options.limit) == (version, exact, limit)


@pytest.mark.parametrize(
    ("query", "initial"),
    [
        ({}, True),
        ({"resourceVersion": "0"}, True),
        ({"resourceVersion": "7"}, False),
        ({"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}, False),
        ({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "resourceVersion": "7"}, True),
    ],
)
def test_watch_has_initial_events_unless_it_starts_from_a_version(
    query: dict[str, str], initial: bool
) -> None:
    assert list_options(None, query, watch=True).initial_events is initial


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"labelSelector": "a===b"}, "unable to parse requirement: found '=', expected: identifier"),
        ({"fieldSelector": "status.nothing=x"}, "field label not supported: status.nothing"),
        (
            {"resourceVersion": "x"},
            'resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax',
        ),
        ({"limit": "x"}, 'strconv.ParseInt: parsing "x": invalid syntax'),
        (
            {"continue": "x", "resourceVersion": "7"},
            "specifying resource version is not allowed when using continue",
        ),
    ],
)
def test_malformed_query_is_400(query: dict[str, str], message: str) -> None:
    with pytest.raises(Failure) as caught:
        list_options(None, query, watch=False)
    assert (caught.value.code, caught.value.status["message"]) == (400, message)


MATCH = "resourceVersionMatch"
NEEDS_VERSION = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
NOT_EXACTLY_0 = 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
UNKNOWN_MATCH = 'Unsupported value: "Latest": supported values: "Exact", "NotOlderThan", ""'
ONLY_WATCHES = "Forbidden: sendInitialEvents is forbidden for list"
NEEDS_MATCH = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
NEEDS_INITIAL = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
NOT_WITH_TOKEN = "Forbidden: resourceVersionMatch is forbidden when continue is provided"


@pytest.mark.parametrize(
    ("query", "watch", "problems"),
    [
        ({MATCH: "Exact"}, False, {f"{MATCH}: {NEEDS_VERSION}"}),
        ({MATCH: "Exact", "resourceVersion": "0"}, False, {f"{MATCH}: {NOT_EXACTLY_0}"}),
        ({MATCH: "Latest", "resourceVersion": "7"}, False, {f"{MATCH}: {UNKNOWN_MATCH}"}),
        ({"sendInitialEvents": "true"}, False, {f"sendInitialEvents: {ONLY_WATCHES}"}),
        ({"sendInitialEvents": "true"}, True, {f"{MATCH}: {NEEDS_MATCH}"}),
        (
            {MATCH: "NotOlderThan", "continue": "x", "resourceVersion": "0"},
            True,
            {f"{MATCH}: {NEEDS_INITIAL}", f"{MATCH}: {NOT_WITH_TOKEN}"},
        ),
    ],
)
def test_contradictory_query_is_422(query: dict[str, str], watch: bool, problems: set[str]) -> None:
    with pytest.raises(Failure) as caught:
        list_options(None, query, watch=watch)
    status = caught.value.status
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["message"].startswith('ListOptions.meta.k8s.io "" is invalid: ')
    assert all(problem in status["message"] for problem in problems)
    assert {f"{cause['field']}: {cause['message']}" for cause in status["details"]["causes"]} == problems


def test_rows_include_metadata_by_default() -> None:
    assert included_object({}) == "Metadata"
    assert included_object({"includeObject": "None"}) == "None"
    with pytest.raises(Failure, match='includeObject: Invalid value: "Some": must be'):
        included_object({"includeObject": "Some"})
