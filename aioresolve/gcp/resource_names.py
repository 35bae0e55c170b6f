"""Names in Google Cloud, validated before they become part of a URL. No I/O.

Grammar: https://cloud.google.com/resource-manager/docs/creating-managing-projects for projects,
`google/cloud/tpu/v2/cloud_tpu.proto` for names of TPUs, and the URLs of Compute Engine's resources
(https://cloud.google.com/compute/docs/reference/rest/v1/instanceGroups). The checks make sure that a name
cannot change more than its own segment of a path; the server decides whether it exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aioresolve.errors import ConfigurationError, Hint

_PROJECT = re.compile(r"(?:[a-z0-9][a-z0-9.-]*:)?[a-z0-9][a-z0-9-]*")
_ZONE = re.compile(r"[a-z0-9][a-z0-9-]*")
# The first character excludes `.` and `..`, which would name another path.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~+-]*")
_TPU_NAME = re.compile(
    r"projects/(?P<project>[^/]*)/locations/(?P<zone>[^/]*)/(?P<collection>nodes|queuedResources)/(?P<name>[^/]*)"
)
_GROUP_NAME = re.compile(
    r"(?:https://[^/]+/compute/[^/]+/)?projects/(?P<project>[^/]*)/(?P<collection>zones|regions)/(?P<zone>[^/]*)"
    r"/(?:instanceGroups|instanceGroupManagers)/(?P<name>[^/]*)"
)


@dataclass(frozen=True, slots=True)
class TPUName:
    """The full name of a TPU node, or of a queued resource.

    Attributes:
        project: project id or number.
        zone: such as `us-central2-b`.
        name: the id of the resource, such as `my-tpu`.
        collection: `nodes` or `queuedResources`.
    """

    project: str
    zone: str
    name: str
    collection: str = "nodes"

    def __str__(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}/{self.collection}/{self.name}"


@dataclass(frozen=True, slots=True)
class InstanceGroupName:
    """The full name of an instance group of Compute Engine.

    Attributes:
        project: project id or number.
        location: the zone, such as `us-central1-a`, or the region, such as `us-central1`.
        name: the name of the group.
        is_regional: whether the location is a region.
    """

    project: str
    location: str
    name: str
    is_regional: bool = False

    def __str__(self) -> str:
        return self.path()

    def path(self, collection: str = "instanceGroups") -> str:
        """Return `projects/P/zones/Z/COLLECTION/NAME`, or that with `regions/R`."""
        kind = "regions" if self.is_regional else "zones"
        return f"projects/{self.project}/{kind}/{self.location}/{collection}/{self.name}"


def is_full_name(text: str) -> bool:
    """Return whether `text` is a full resource name, which contains its project and zone."""
    return "/" in text


def tpu_name(
    text: str, project: str | None = None, zone: str | None = None, collection: str = "nodes"
) -> TPUName:
    """Return the name of a TPU, from its id or `projects/P/locations/Z/COLLECTION/N`.

    An id requires project and zone; for a full name they may be given too, and must be the same.
    """
    kind = "TPU node" if collection == "nodes" else "queued resource"
    full_name = f"projects/PROJECT/locations/ZONE/{collection}/ID"
    project, zone, name, found = _parse(_TPU_NAME, text, kind, full_name, project, zone)
    if found not in (None, collection):
        raise _invalid(text, kind, full_name)
    return TPUName(project, zone, name, collection)


def instance_group_name(text: str, project: str | None = None, zone: str | None = None) -> InstanceGroupName:
    """Return the name of an instance group, from a name alone, or the URL or full name of it or its manager.

    A name alone requires a project and a zone. With a full name they may be given too, and must be the same.
    """
    full_name = "projects/PROJECT/zones/ZONE/instanceGroups/NAME"
    project, place, name, found = _parse(_GROUP_NAME, text, "instance group", full_name, project, zone)
    return InstanceGroupName(project, place, name, found == "regions")


def validate_project(text: str) -> str:
    """Return `text` if it is a project id or number; a ConfigurationError otherwise."""
    if _PROJECT.fullmatch(text) is None:
        raise ConfigurationError(
            f"{text!r} is not a valid project",
            hint="Use a project id such as 'my-project-123', or a project number.",
        )
    return text


def validate_zone(text: str) -> str:
    """Return `text` if it is a zone or a region; a ConfigurationError otherwise."""
    if _ZONE.fullmatch(text) is None:
        raise ConfigurationError(
            f"{text!r} is not a valid zone or region",
            hint="Use the name of a zone such as 'us-central2-b', or of a region such as 'us-central2'.",
        )
    return text


def _parse(
    pattern: re.Pattern[str], text: str, kind: str, full_name: str, project: str | None, zone: str | None
) -> tuple[str, str, str, str | None]:
    """Return project, zone and name of a resource, which are required, and the collection of a full name."""
    name, collection = text, None
    if is_full_name(text):
        match = pattern.fullmatch(text)
        if match is None:
            raise _invalid(text, kind, full_name)
        name, collection = match["name"], match["collection"]
        project = _agreed(kind, text, "project", match["project"], project)
        zone = _agreed(kind, text, "zone", match["zone"], zone)
    if _ID.fullmatch(name) is None:
        raise _invalid(name, kind, full_name)
    if project and zone:
        return validate_project(project), validate_zone(zone), name, collection
    missing = [part for part, value in (("project", project), ("zone", zone)) if not value]
    arguments = " and ".join(f"{{{part}}}" for part in missing)
    raise ConfigurationError(
        f"unknown {' and '.join(missing)} of {kind} {name!r}",
        hint=Hint(f"Pass {arguments}, or the full name {full_name}."),
    )


def _agreed(kind: str, text: str, part: str, named: str, given: str | None) -> str:
    # A project has an id and a number; whether they are those of the same project, only the server knows.
    is_other_spelling = part == "project" and given is not None and given.isdigit() != named.isdigit()
    if given and given != named and not is_other_spelling:
        raise ConfigurationError(
            f"{kind} {text!r} is in {part} {named!r}, but {given!r} was given as well",
            hint=f"Leave out {{{part}}}, or correct the name.",
        )
    return named


def _invalid(text: str, kind: str, full_name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text!r} is not a valid name of {'an' if kind[0] in 'aeiou' else 'a'} {kind}",
        argument="instance_group" if kind == "instance group" else None,
        hint=f"Use its id (letters, digits, '-', '_', '.'), or its full name {full_name}.",
    )
