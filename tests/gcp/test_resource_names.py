"""Resource names are validated before they become part of a URL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from aioresolve.errors import ConfigurationError
from aioresolve.gcp.resource_names import (
    InstanceGroupName,
    TPUName,
    instance_group_name,
    is_full_name,
    tpu_name,
    validate_project,
)

FULL = "projects/demo-project/locations/us-central2-b/nodes/my-tpu"
PLACE = "projects/demo-project/locations/us-central2-b"


def test_a_tpu_has_an_id_in_a_project_and_zone_or_a_full_name() -> None:
    name = TPUName("demo-project", "us-central2-b", "my-tpu")
    assert str(name) == FULL
    assert tpu_name("my-tpu", "demo-project", "us-central2-b") == name
    assert tpu_name(FULL) == tpu_name(FULL, "demo-project", "us-central2-b") == name
    assert tpu_name(FULL, "123456789012") == name  # may be the number of that project
    assert (is_full_name(FULL), is_full_name("my-tpu")) == (True, False)
    queued = f"{PLACE}/queuedResources/q"
    assert str(tpu_name(queued, collection="queuedResources")) == queued


def test_a_project_is_an_id_or_a_number_or_belongs_to_a_domain() -> None:
    for project in ("demo-project", "123456789012", "example.com:demo-project"):
        assert validate_project(project) == project


@pytest.mark.parametrize(
    ("text", "project", "zone", "message"),
    [
        ("my-tpu", None, None, "unknown project and zone of TPU node 'my-tpu'. Pass `project=` and"),
        ("my-tpu", "p", "", "unknown zone of TPU node 'my-tpu'. Pass `zone=`, or the full name"),
        ("", "p", "z", "'' is not a valid name of a TPU node"),
        ("..", "p", "z", "'..' is not a valid name of a TPU node"),
        (f"{PLACE}/queuedResources/q", None, None, "not a valid name of a TPU node"),
        (f"/{FULL}", None, None, "not a valid name"),
        ("projects/../locations/z/nodes/n", None, None, "'..' is not a valid project"),
        ("projects/p/locations/../nodes/n", None, None, "'..' is not a valid zone"),
        (
            "projects/1/locations/z/nodes/n",
            "2",
            None,
            "is in project '1', but '2' was given as well. Leave out",
        ),
        (FULL, None, "other", "is in zone 'us-central2-b', but 'other' was given as well. Leave out `zone=`"),
    ],
)
def test_an_invalid_name_is_rejected_with_a_hint(
    text: str, project: str | None, zone: str | None, message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tpu_name(text, project, zone)
    assert message in str(caught.value)


GROUP = "projects/p/zones/z-a/instanceGroups/g"
REGIONAL_GROUP = "projects/p/regions/r/instanceGroups/g"


@pytest.mark.parametrize(
    ("text", "places", "message"),
    [
        ("g", {}, "unknown project and zone of instance group 'g'. Pass `project=` and `zone=`, or the full"),
        (REGIONAL_GROUP, {"zone": "z-a"}, "is in zone 'r', but 'z-a' was given as well. Leave out `zone=`"),
        ("g", {"project": "p", "zone": "Z"}, "'Z' is not a valid zone or region"),
        (f"{GROUP}/h", {}, f"`instance_group=`: '{GROUP}/h' is not a valid name of an instance group"),
    ],
)
def test_an_invalid_instance_group_is_rejected_with_a_hint(
    text: str, places: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        instance_group_name(text, **places)
    assert message in str(caught.value)


def test_an_instance_group_is_in_a_zone_or_a_region() -> None:
    zonal = instance_group_name(GROUP, "p", "z-a")
    assert zonal == instance_group_name("g", "p", "z-a") == InstanceGroupName("p", "z-a", "g")
    assert (zonal.path(), zonal.is_regional) == (GROUP, False)
    regional = instance_group_name(REGIONAL_GROUP)
    assert (str(regional), regional.is_regional) == (REGIONAL_GROUP, True)
    assert regional.path("instanceGroupManagers") == "projects/p/regions/r/instanceGroupManagers/g"


@given(st.text(max_size=30), st.text(max_size=12) | st.just("p"), st.text(max_size=12) | st.just("z"))
def test_a_valid_name_changes_only_its_own_segments_of_the_url(text: str, project: str, zone: str) -> None:
    try:
        name = tpu_name(text, project, zone)
    except ConfigurationError:
        return
    url = URL(f"https://tpu.googleapis.com/v2/{name}")
    assert str(url.origin()) == "https://tpu.googleapis.com"
    assert len(url.parts) == 8
    assert (url.query_string, url.fragment) == ("", "")
    assert url.path == f"/v2/{name}"
