"""What the server says of itself: its version and the resources it has."""

from __future__ import annotations

from typing import Any

from aioresolve.testing.kubernetes.encoding import compact_json, indented_json

__all__ = ["PUBLIC_PATHS", "discovery_body"]

_HEALTH = frozenset({"/readyz", "/livez", "/healthz"})
PUBLIC_PATHS = _HEALTH | {"/version"}
"""What is answered without credentials."""

_VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-06-16T00:00:00Z",
    "goVersion": "go1.26",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_POD_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def discovery_body(path: str) -> tuple[str, bytes] | None:
    """Content type and body of the answer on `path`, None where there is none."""
    if path in _HEALTH:
        return "text/plain; charset=utf-8", b"ok"
    if path == "/version":
        return "application/json", indented_json(compact_json(_VERSION))
    document = _DOCUMENTS.get(path)
    return None if document is None else ("application/json", compact_json(document) + b"\n")


def _pods(name: str, verbs: list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "singularName": "", "namespaced": True, "kind": "Pod", "verbs": verbs, **more}


_DOCUMENTS: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _pods("pods", _POD_VERBS, shortNames=["po"], categories=["all"]) | {"singularName": "pod"},
            _pods("pods/status", ["get", "patch", "update"]),
        ],
    },
}
