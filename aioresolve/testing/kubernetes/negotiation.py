"""Which representation a client asked for in its `Accept` header.

As k8s.io/apiserver/pkg/endpoints/handlers/negotiation: the first acceptable clause wins, better `q` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aioresolve.testing.kubernetes.statuses import no_such_transformation, not_acceptable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Kind", "Representation", "accepts_gzip", "negotiated", "wants_indent"]

_JSON = frozenset({"application/json", "application/*", "*/*"})
_PEOPLE = ("curl", "Wget", "Mozilla/5.0")
"""User agents that are answered with indented JSON."""

Kind = Literal["object", "table", "metadata"]


@dataclass(frozen=True, slots=True)
class Representation:
    """How objects are answered.

    Attributes:
        kind: whole objects, a Table of rows, or only their metadata.
        indent: whether for a person to read.
    """

    kind: Kind
    indent: bool = False


_KINDS: dict[str, Kind] = {
    "": "object",
    "Table": "table",
    "PartialObjectMetadata": "metadata",
    "PartialObjectMetadataList": "metadata",
}


def negotiated(accept: str | None, user_agent: str, pretty: str | None) -> Representation:
    """The representation agreed upon; no `Accept` header is plain JSON.

    Raises:
        Failure: 406, nothing acceptable can be made.
    """
    clauses = [clause for clause in _clauses(accept or "*/*") if clause[0] in _JSON]
    for _, parameters in clauses:
        kind = _KINDS.get(parameters.get("as", ""))
        transformed = kind not in {None, "object"}
        if kind is None or (transformed and _group_version(parameters) != ("meta.k8s.io", "v1")):
            continue
        return Representation(kind, wants_indent(user_agent, pretty, parameters))
    raise no_such_transformation() if clauses else not_acceptable()


def wants_indent(user_agent: str, pretty: str | None, parameters: Mapping[str, str] | None = None) -> bool:
    """Whether JSON is indented: `?pretty=` decides, then the Accept clause, then who asks."""
    if parameters and parameters.get("pretty") == "1":
        return True
    if pretty:
        return pretty in {"1", "t", "T", "true", "TRUE", "True"}
    return user_agent.startswith(_PEOPLE)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the client can read gzip."""
    return any(coding.partition(";")[0].strip() == "gzip" for coding in accept_encoding.split(","))


def _group_version(parameters: Mapping[str, str]) -> tuple[str, str]:
    return parameters.get("g", ""), parameters.get("v", "")


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    clauses = []
    for text in accept.split(","):
        media_type, *pairs = (part.strip() for part in text.split(";"))
        parameters = {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs if pair}
        clauses.append((media_type.lower(), parameters))
    return sorted(clauses, key=lambda clause: (-_quality(clause[1]), "*" in clause[0]))


def _quality(parameters: Mapping[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 1.0
