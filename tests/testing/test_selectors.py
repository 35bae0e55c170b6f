"""The selector grammar of the loopback API server."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.testing.kubernetes.selectors import POD_FIELDS, SelectorError, field_selector, label_selector

LABELS = {"app": "trainer", "tier": "gpu", "index": "10", "empty": "", "job.example.com/name": "train"}

# The messages of a real server.
ALPHANUMERIC = (
    "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
BAD_NUMBER = "values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer"
BAD_NAME = (
    f"name part must consist of {ALPHANUMERIC} (e.g. 'MyName',  or 'my.name',  or '123-abc', "
    "regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
BAD_VALUE = (
    f"a valid label must be an empty string or consist of {ALPHANUMERIC} (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=trainer", True),
        ("app==trainer", True),
        (" app = trainer , tier=gpu", True),
        ("app=other", False),
        ("missing=trainer", False),
        ("app!=other", True),
        ("app!=trainer", False),
        ("missing!=trainer", True),
        ("app in (trainer,other)", True),
        ("app in ( other , trainer )", True),
        ("app in (other)", False),
        ("missing in (trainer)", False),
        ("app notin (other)", True),
        ("app notin (trainer)", False),
        ("missing notin (trainer)", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("! missing", True),
        ("!app", False),
        ("index>9", True),
        ("index>10", False),
        ("index<11", True),
        ("app>1", False),
        ("missing>1", False),
        ("empty=", True),
        ("empty", True),
        ("empty=,app=trainer", True),
        ("app=", False),
        ("empty in ()", True),
        ("empty in (,x)", True),
        ("app in (x,,y)", False),
        ("empty in (x,,y)", True),
        ("job.example.com/name=train", True),
        ("in in (in)", False),
        ("app=trainer,tier=cpu", False),
    ],
)
def test_label_selector_matches_as_on_a_real_server(text: str, matches: bool) -> None:
    assert label_selector(text).matches(LABELS) is matches


def test_in_and_notin_may_be_keys_and_values() -> None:
    assert label_selector("in in (in,notin)").matches({"in": "notin"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a===b", "unable to parse requirement: found '=', expected: identifier"),
        ("=b", "found '=', expected: !, identifier, or 'end of string'"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("a=b,", "found '', expected: identifier after ','"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        ("a>x", f"unable to parse requirement: {BAD_NUMBER}"),
        ("-a=b", f'unable to parse requirement: <nil>: Invalid value: "-a": {BAD_NAME}'),
        ("a=-b", f'unable to parse requirement: values[0][a]: Invalid value: "-b": {BAD_VALUE}'),
        (f"a={'b' * 64}", f'values[0][a]: Invalid value: "{"b" * 64}": must be no more than 63 bytes'),
        ("/a", 'unable to parse requirement: <nil>: Invalid value: "/a": prefix part must be non-empty'),
        ("a/", "name part must be non-empty; name part must consist of"),
        ("A_/b", "prefix part a lowercase RFC 1123 subdomain must consist of lower case"),
        ("a/b/c", "a valid label key must consist of alphanumeric characters"),
    ],
)
def test_invalid_label_selector_has_the_error_of_a_real_server(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as caught:
        label_selector(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("status.phase=Running", True),
        ("status.phase==Running", True),
        ("status.phase!=Running", False),
        ("status.phase=Running,spec.nodeName=node-a", True),
        ("status.phase=Running,spec.nodeName=node-b", False),
        ("spec.host=node-a", True),
        ("status.podIPs=10.0.0.1", False),
        ("status.nominatedNodeName=", True),
        ("metadata.name=a\\,b", False),
        (",,", True),
    ],
)
def test_field_selector_matches_as_on_a_real_server(text: str, matches: bool) -> None:
    fields = {"status.phase": "Running", "spec.nodeName": "node-a", "metadata.name": "train-0"}
    assert field_selector(text).matches(fields) is matches


def test_escaped_value_is_literal() -> None:
    assert field_selector(r"metadata.name=a\,b\=c\\d").matches({"metadata.name": r"a,b=c\d"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("status.nothing=x", "field label not supported: status.nothing"),
        ("status.phase", "invalid selector: 'status.phase'; can't understand 'status.phase'"),
        ("status.phase=a=b", "unescaped character in value: 61"),
        (r"status.phase=a\b", r"invalid escape sequence: \b"),
    ],
)
def test_invalid_field_selector_has_the_error_of_a_real_server(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as caught:
        field_selector(text)
    assert message in str(caught.value)


def test_every_selectable_field_of_a_pod_is_supported() -> None:
    assert all(field_selector(f"{name}!=x").matches({}) for name in POD_FIELDS)


words = st.sampled_from(["a", "b", "c", "in", "notin", "x-1"])
label_sets = st.dictionaries(words, words | st.just(""), max_size=4)
requirements: st.SearchStrategy[tuple[str, str, list[str]]] = st.one_of(
    st.tuples(words, st.sampled_from(["=", "==", "!="]), st.lists(words, min_size=1, max_size=1)),
    st.tuples(words, st.sampled_from(["in", "notin"]), st.lists(words, min_size=1, max_size=3)),
    st.tuples(words, st.sampled_from(["exists", "!"]), st.just([])),
)


def spelled(key: str, operator: str, values: list[str], space: str) -> str:
    if operator == "exists":
        return f"{space}{key}{space}"
    if operator == "!":
        return f"!{space}{key}"
    if operator in {"in", "notin"}:
        return f"{key} {operator}{space}({space}{f'{space},{space}'.join(values)}{space})"
    return f"{space}{key}{space}{operator}{space}{values[0]}"


def satisfied(key: str, operator: str, values: list[str], labels: dict[str, str]) -> bool:
    match operator:
        case "exists":
            return key in labels
        case "!":
            return key not in labels
        case "=" | "==" | "in":
            return key in labels and labels[key] in values
        case _:
            return key not in labels or labels[key] not in values


@given(st.lists(requirements, max_size=4), label_sets, st.sampled_from(["", " ", "\t "]))
def test_selector_matches_if_every_requirement_matches(
    terms: list[tuple[str, str, list[str]]], labels: dict[str, str], space: str
) -> None:
    selector = label_selector(",".join(spelled(*term, space) for term in terms))
    assert selector.matches(labels) is all(satisfied(*term, labels) for term in terms)


@given(st.text(alphabet="ab=!<>(), in/.-\\", max_size=20))
def test_any_text_is_a_selector_or_a_selector_error(text: str) -> None:
    for parsed in (label_selector, field_selector):
        with suppress(SelectorError):
            parsed(text)
