"""fleet.yaml: the targets of a fleet, described in a file.

```yaml
interval: 30s            # between two questions to a target: 500ms, 30s, 2m, or a number of seconds
timeout: 10s             # of each question
max_concurrency: 64      # questions at a time
defaults:                # for every target of that kind, unless it says otherwise
  kubernetes: {namespace: training, kubeconfig: ~/.kube/config}
  tpu: {project: my-project, zone: us-central2-b}
targets:
  us-east:
    kubernetes:
      context: us-east
      jobs: {worker: app=trainer, ps: [app=ps, app=ps-spare]}
  tpu-a:
    tpu: {name: my-tpu, zone: "${ZONE:-us-central2-b}"}
  fixed:
    static: {jobs: {worker: ["10.0.0.1:8470"]}}
  both:
    union: [us-east, tpu-a]
```

All but `targets` may be left out. A target is of one kind, and what may be said of it is what its resolver's
constructor takes, by the same names, as far as a file can say it; but for `jobs` (label selectors, or
addresses), `port` (`tf_server_port`) and a TPU's `name` (`tpu`). `null` takes a default back.

In any value `${NAME}` is the environment variable, `${NAME:-default}` the default where it is not set or
empty, and `$$` a dollar; between `{ }` and `[ ]` YAML wants quotes around them. No message shows what a
variable holds. A relative `kubeconfig` is relative to the fleet file, and `~` is home. Anchors, aliases and
merge keys work; fields of the file that begin with `x-` are there to hold anchors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError

from .diagnostics import Place, Problems
from .fields import FieldError, closest, duration, kind_of, whole
from .targets import defaults_of, resolvers_of, targets_of
from .yaml_tree import Entries, UnreadableError, is_null, tree_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve.resolver.base import ClusterResolver

    from .fields import Reader

__all__ = ["FleetFile", "fleet_of", "read_fleet"]

LARGEST_FILE = 16 * 1024 * 1024
"""Bytes; some 100,000 targets."""

_SETTINGS: Mapping[str, Reader] = {
    "interval": duration,
    "timeout": duration,
    "max_concurrency": whole(1, 100_000),
}
_KNOWN = (*_SETTINGS, "defaults", "targets")


@dataclass(frozen=True, slots=True)
class FleetFile:
    """What a fleet file says.

    Attributes:
        targets: each target's resolver by its name, in the order of the file.
        interval: seconds between two questions to a target; None where the file does not say.
        timeout: seconds of each question, and of each call of the resolvers; None where the file does not
            say.
        max_concurrency: questions at a time; None where the file does not say.
    """

    targets: Mapping[str, ClusterResolver] = field(repr=False)
    interval: float | None = None
    timeout: float | None = None
    max_concurrency: int | None = None


def read_fleet(path: str | os.PathLike[str], *, environ: Mapping[str, str] = os.environ) -> FleetFile:
    """Return what the fleet file at `path` says. It blocks while the file is read; no cluster is asked.

    Args:
        path: the file; for its format see this module.
        environ: the variables that it may refer to.

    Raises:
        ConfigurationError: (a ValueError) the file cannot be read; or what is wrong with it, a line for each
            problem with the file's line and the field.
    """
    source = os.fsdecode(path)
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"{source}: the fleet file cannot be read: {reason}; give the path of one"
        ) from error
    if len(content) > LARGEST_FILE:
        raise ConfigurationError(f"{source}: is larger than {LARGEST_FILE} bytes: is it the right file?")
    folder = os.path.dirname(os.path.abspath(source))
    return fleet_of(_decoded(content, source), source=source, folder=folder, environ=environ)


def fleet_of(
    text: str, *, source: str = "fleet.yaml", folder: str | None = None, environ: Mapping[str, str]
) -> FleetFile:
    """Return what a fleet file with this text says. Pure.

    Args:
        text: the file's text.
        source: the file's path, for messages.
        folder: what relative paths start from; the folder of `source` where None.
        environ: the variables that it may refer to.

    Raises:
        ConfigurationError: (a ValueError) what is wrong with it, a line for each problem with the file's line
            and the field.
    """
    problems = Problems()
    fleet = _fleet(text, os.path.dirname(source) if folder is None else folder, environ, problems)
    if fleet is None:
        raise problems.error(source)
    return fleet


def _decoded(content: bytes, source: str) -> str:
    problems = Problems()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
    problems.add(Place(line), "is not UTF-8; save the file as UTF-8")
    raise problems.error(source)


def _fleet(text: str, folder: str, environ: Mapping[str, str], problems: Problems) -> FleetFile | None:
    """Return what the text says; None where there are problems."""
    try:
        root = tree_of(text, environ, problems)
    except UnreadableError as error:
        problems.add(error.place, str(error))
        return None
    if is_null(root):
        problems.add(root.place, "is empty; a fleet file has at least `targets:`")
        return None
    if not isinstance(root, Entries):
        problems.add(root.place, f"must be a mapping with `targets:`, not {kind_of(root)}")
        return None
    settings = _settings(root, folder, problems)
    written = root.values
    defaults = defaults_of(written["defaults"], folder, problems) if "defaults" in written else {}
    if "targets" not in written:
        problems.add(root.place, "lacks `targets`; write at least one target below it")
        return None
    targets = targets_of(written["targets"], defaults, folder, problems)
    if problems:  # of which any may be why a constructor refuses something
        return None
    resolvers = resolvers_of(targets, settings.get("timeout"), folder, problems)
    return None if problems else FleetFile(MappingProxyType(resolvers), **settings)


def _settings(root: Entries, folder: str, problems: Problems) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, tree in root.values.items():
        if name in _SETTINGS and not is_null(tree):
            try:
                settings[name] = _SETTINGS[name](tree, folder)
            except FieldError as error:
                problems.add(error.tree.place, str(error))
        elif name not in _KNOWN and not name.startswith("x-"):
            problems.add(root.place_of(name), f"is no field of a fleet file; {closest(name, _KNOWN)}")
    return settings
