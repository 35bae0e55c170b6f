"""Names are checked before they become part of a URL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from aioresolve.errors import ConfigurationError
from aioresolve.gcp.resource_names import (
    NodeName,
    QueuedResourceName,
    checked_project,
    checked_zone,
    is_full_name,
    node_name,
    queued_resource_name,
)

FULL = "projects/demo-project/locations/us-central2-b/nodes/my-tpu"
PLACE = "projects/demo-project/locations/us-central2-b"


def test_an_id_is_a_node_of_the_project_and_zone_given() -> None:
    name = node_name("my-tpu", "demo-project", "us-central2-b")
    assert name == NodeName("demo-project", "us-central2-b", "my-tpu")
    assert name.path == str(name) == FULL


def test_a_full_name_needs_nothing_beside_it() -> None:
    assert node_name(FULL) == NodeName("demo-project", "us-central2-b", "my-tpu")
    assert node_name(FULL, "demo-project", "us-central2-b") == node_name(FULL)
    assert is_full_name(FULL)
    assert not is_full_name("my-tpu")


def test_a_queued_resource_has_full_names_too() -> None:
    name = queued_resource_name(f"{PLACE}/queuedResources/q")
    assert name == QueuedResourceName("demo-project", "us-central2-b", "q")
    assert name.path == str(name) == f"{PLACE}/queuedResources/q"


@pytest.mark.parametrize("project", ["demo-project", "123456789012", "example.com:demo-project"])
def test_projects_are_ids_numbers_and_those_of_a_domain(project: str) -> None:
    assert checked_project(project) == project


@pytest.mark.parametrize("zone", ["us-central2-b", "europe-west4-a", "-"])
def test_zones_are_names_or_a_dash_for_all(zone: str) -> None:
    assert checked_zone(zone) == zone


@pytest.mark.parametrize(
    ("text", "project", "zone", "message"),
    [
        ("my-tpu", None, None, "the project and zone of TPU node 'my-tpu' is not known: give `project` and"),
        ("my-tpu", "p", "", "the zone of TPU node 'my-tpu' is not known: give `zone`, or the full name"),
        ("my-tpu", "p", "-", "'my-tpu' is in one zone: give it"),
        ("", "p", "z", "'' is no name of a TPU node"),
        ("..", "p", "z", "'..' is no name of a TPU node"),
        ("a?b", "p", "z", "no name"),
        ("a#b", "p", "z", "no name"),
        ("a%2fb", "p", "z", "no name"),
        ("a b", "p", "z", "no name"),
        ("a/b", "p", "z", "no name"),
        ("a\n", "p", "z", "no name"),
        (f"{PLACE}/queuedResources/q", None, None, "no name of a TPU node"),
        (f"/{FULL}", None, None, "no name"),
        ("projects/../locations/z/nodes/n", None, None, "'..' is no project"),
        ("projects/p/locations/../nodes/n", None, None, "'..' is no zone"),
        (FULL, "other", None, "is in project 'demo-project', but project='other' was given"),
        (FULL, None, "other", "is in zone 'us-central2-b', but zone='other' was given"),
        ("my-tpu", "p/q", "z", "'p/q' is no project"),
        ("my-tpu", "p", "Z Z", "'Z Z' is no zone"),
    ],
)
def test_what_is_no_name_is_told_with_its_mend(
    text: str, project: str | None, zone: str | None, message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        node_name(text, project, zone)
    assert message in str(caught.value)


@given(st.text(max_size=30), st.text(max_size=12) | st.just("p"), st.text(max_size=12) | st.just("z"))
def test_no_name_changes_any_other_part_of_the_url(text: str, project: str, zone: str) -> None:
    try:
        name = node_name(text, project, zone)
    except ConfigurationError:
        return
    url = URL(f"https://tpu.googleapis.com/v2/{name.path}")
    assert str(url.origin()) == "https://tpu.googleapis.com"
    assert len(url.parts) == 8
    assert (url.query_string, url.fragment) == ("", "")
    assert url.path == f"/v2/{name.path}"
