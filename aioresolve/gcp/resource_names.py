"""Names in Google Cloud: checked before they become part of a URL. Pure.

Grammar: https://cloud.google.com/resource-manager/docs/creating-managing-projects for projects,
`google/cloud/tpu/v2/cloud_tpu.proto` for resource names. What is checked here is that a name can change
nothing but its own segment of a path; whether it exists is the server's to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from aioresolve.errors import ConfigurationError

__all__ = [
    "ALL_ZONES",
    "NodeName",
    "QueuedResourceName",
    "checked_project",
    "checked_zone",
    "is_full_name",
    "node_name",
    "queued_resource_name",
]

ALL_ZONES = "-"
"""The zone that stands for every location, where a list is asked for."""

_PROJECT = re.compile(r"(?:[a-z0-9][a-z0-9.-]*:)?[a-z0-9][a-z0-9-]*")
_ZONE = re.compile(r"[a-z0-9][a-z0-9-]*")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~+-]*")
_FULL = re.compile(r"projects/([^/]*)/locations/([^/]*)/(nodes|queuedResources)/([^/]*)")


@dataclass(frozen=True, slots=True)
class NodeName:
    """The full name of a TPU node.

    Attributes:
        project: project id or number.
        zone: such as `us-central2-b`.
        name: the node's id, such as `my-tpu`.
    """

    project: str
    zone: str
    name: str

    def __str__(self) -> str:
        return self.path

    @property
    def path(self) -> str:
        """`projects/P/locations/Z/nodes/N`."""
        return f"projects/{self.project}/locations/{self.zone}/nodes/{self.name}"


@dataclass(frozen=True, slots=True)
class QueuedResourceName:
    """The full name of a queued resource.

    Attributes:
        project: project id or number.
        zone: such as `us-central2-b`.
        name: the queued resource's id.
    """

    project: str
    zone: str
    name: str

    def __str__(self) -> str:
        return self.path

    @property
    def path(self) -> str:
        """`projects/P/locations/Z/queuedResources/Q`."""
        return f"projects/{self.project}/locations/{self.zone}/queuedResources/{self.name}"


def is_full_name(text: str) -> bool:
    """Whether `text` is a full resource name, which needs no project and zone beside it."""
    return "/" in text


def node_name(text: str, project: str | None = None, zone: str | None = None) -> NodeName:
    """Return the node that `text` names: an id, or `projects/P/locations/Z/nodes/N`.

    Args:
        text: the name.
        project: the project of an id; a full name has its own, which must be the same if both are given.
        zone: the zone of an id; likewise.

    Raises:
        ConfigurationError: it is no such name, or project or zone are missing or differ.
    """
    return NodeName(*_parts(text, "nodes", "TPU node", project, zone))


def queued_resource_name(
    text: str, project: str | None = None, zone: str | None = None
) -> QueuedResourceName:
    """Return the queued resource that `text` names: an id, or `projects/P/locations/Z/queuedResources/Q`.

    Args:
        text: the name.
        project: the project of an id; a full name has its own, which must be the same if both are given.
        zone: the zone of an id; likewise.

    Raises:
        ConfigurationError: it is no such name, or project or zone are missing or differ.
    """
    return QueuedResourceName(*_parts(text, "queuedResources", "queued resource", project, zone))


def checked_project(text: str) -> str:
    """Return `text` where it is a project id or number.

    Raises:
        ConfigurationError: it is neither.
    """
    if _PROJECT.fullmatch(text) is None:
        raise ConfigurationError(
            f"{text!r} is no project: give a project id such as 'my-project-123' or a project number"
        )
    return text


def checked_zone(text: str) -> str:
    """Return `text` where it is a zone, or `-` for all of them.

    Raises:
        ConfigurationError: it is neither.
    """
    if text != ALL_ZONES and _ZONE.fullmatch(text) is None:
        raise ConfigurationError(f"{text!r} is no zone: give one such as 'us-central2-b'")
    return text


def _parts(
    text: str, collection: str, kind: str, project: str | None, zone: str | None
) -> tuple[str, str, str]:
    """Return project, zone and id."""
    if is_full_name(text):
        found = _FULL.fullmatch(text)
        if found is None or found[3] != collection:
            _refuse(text, collection, kind)
        project = _agreed(kind, text, "project", found[1], project)
        zone = _agreed(kind, text, "zone", found[2], zone)
        text = found[4]
    if _ID.fullmatch(text) is None:
        _refuse(text, collection, kind)
    if not project or not zone:
        missing = " and ".join(name for name, value in (("project", project), ("zone", zone)) if not value)
        raise ConfigurationError(
            f"the {missing} of {kind} {text!r} is not known: give `{missing.replace(' and ', '` and `')}`,"
            f" or the full name projects/PROJECT/locations/ZONE/{collection}/{text}"
        )
    if zone == ALL_ZONES:
        raise ConfigurationError(f"{kind} {text!r} is in one zone: give it, such as 'us-central2-b'")
    return checked_project(project), checked_zone(zone), text


def _agreed(kind: str, text: str, what: str, named: str, given: str | None) -> str:
    if given and given != named:
        raise ConfigurationError(
            f"{kind} {text!r} is in {what} {named!r}, not {given!r}",
            hint=f"Correct or leave out {{{what}}}.",
        )
    return named


def _refuse(text: object, collection: str, kind: str) -> NoReturn:
    raise ConfigurationError(
        f"{text!r} is no name of a {kind}: give its id (letters, digits, '-', '_', '.'), such as 'my-tpu',"
        f" or its full name projects/PROJECT/locations/ZONE/{collection}/ID"
    )
