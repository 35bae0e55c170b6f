"""Names in Google Cloud, validated before they become part of a URL. No I/O.

Grammar: https://cloud.google.com/resource-manager/docs/creating-managing-projects for projects,
`google/cloud/tpu/v2/cloud_tpu.proto` for resource names. The checks make sure that a name cannot change
more than its own segment of a path; the server decides whether it exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from aioresolve.errors import ConfigurationError, Hint

ALL_ZONES = "-"
"""The zone that stands for every location in a list request."""

_PROJECT = re.compile(r"(?:[a-z0-9][a-z0-9.-]*:)?[a-z0-9][a-z0-9-]*")
_ZONE = re.compile(r"[a-z0-9][a-z0-9-]*")
# The first character excludes `.` and `..`, which would name another path.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~+-]*")
_FULL_NAME = re.compile(r"projects/([^/]*)/locations/([^/]*)/(nodes|queuedResources)/([^/]*)")


@dataclass(frozen=True, slots=True)
class ResourceName:
    """The full name of a resource.

    Attributes:
        project: project id or number.
        zone: such as `us-central2-b`.
        name: the id of the resource, such as `my-tpu`.
    """

    collection: ClassVar[str]

    project: str
    zone: str
    name: str

    def __str__(self) -> str:
        return self.path

    @property
    def path(self) -> str:
        """`projects/P/locations/Z/COLLECTION/NAME`."""
        return f"projects/{self.project}/locations/{self.zone}/{self.collection}/{self.name}"


class NodeName(ResourceName):
    """The full name of a TPU node."""

    __slots__ = ()
    collection = "nodes"


class QueuedResourceName(ResourceName):
    """The full name of a queued resource."""

    __slots__ = ()
    collection = "queuedResources"


def is_full_name(text: str) -> bool:
    """Return whether `text` is a full resource name, which contains its project and zone."""
    return "/" in text


def node_name(text: str, project: str | None = None, zone: str | None = None) -> NodeName:
    """Return the name of a node, from its id or `projects/P/locations/Z/nodes/N`.

    An id requires project and zone; for a full name they may be given too, and must be the same.
    """
    return NodeName(*_parse(text, NodeName.collection, "TPU node", project, zone))


def queued_resource_name(
    text: str, project: str | None = None, zone: str | None = None
) -> QueuedResourceName:
    """Return the name of a queued resource, from its id or `projects/P/locations/Z/queuedResources/Q`.

    Arguments and errors: see `node_name`.
    """
    return QueuedResourceName(*_parse(text, QueuedResourceName.collection, "queued resource", project, zone))


def validate_project(text: str) -> str:
    """Return `text` if it is a project id or number; a ConfigurationError otherwise."""
    if _PROJECT.fullmatch(text) is None:
        raise ConfigurationError(
            f"{text!r} is not a valid project",
            hint="Use a project id such as 'my-project-123', or a project number.",
        )
    return text


def validate_zone(text: str) -> str:
    """Return `text` if it is a zone, or `-` for all zones; a ConfigurationError otherwise."""
    if text != ALL_ZONES and _ZONE.fullmatch(text) is None:
        raise ConfigurationError(
            f"{text!r} is not a valid zone", hint="Use the name of a zone such as 'us-central2-b'."
        )
    return text


def _parse(
    text: str, collection: str, kind: str, project: str | None, zone: str | None
) -> tuple[str, str, str]:
    """Return project, zone and id."""
    if is_full_name(text):
        match = _FULL_NAME.fullmatch(text)
        if match is None or match[3] != collection:
            raise _invalid_name(text, collection, kind)
        project = _agreed(kind, text, "project", match[1], project)
        zone = _agreed(kind, text, "zone", match[2], zone)
        text = match[4]
    if _ID.fullmatch(text) is None:
        raise _invalid_name(text, collection, kind)
    if not project or not zone:
        missing = [name for name, value in (("project", project), ("zone", zone)) if not value]
        raise ConfigurationError(
            f"unknown {' and '.join(missing)} of {kind} {text!r}",
            hint=Hint(
                f"Pass {' and '.join(f'{{{name}}}' for name in missing)}, or the full name"
                f" projects/PROJECT/locations/ZONE/{collection}/ID."
            ),
        )
    if zone == ALL_ZONES:
        raise ConfigurationError(
            f"{kind} {text!r} requires a zone, not {ALL_ZONES!r}",
            hint="Pass the {zone} it is in, such as 'us-central2-b'.",
        )
    return validate_project(project), validate_zone(zone), text


def _agreed(kind: str, text: str, part: str, named: str, given: str | None) -> str:
    # A project has an id and a number; whether they are those of the same project, only the server knows.
    is_other_spelling = part == "project" and given is not None and given.isdigit() != named.isdigit()
    if given and given != named and not is_other_spelling:
        raise ConfigurationError(
            f"{kind} {text!r} is in {part} {named!r}, but {given!r} was given as well",
            hint=f"Leave out {{{part}}}, or correct the name.",
        )
    return named


def _invalid_name(text: str, collection: str, kind: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text!r} is not a valid name of a {kind}",
        hint="Use its id (letters, digits, '-', '_', '.'), such as 'my-tpu', or its full name"
        f" projects/PROJECT/locations/ZONE/{collection}/ID.",
    )
