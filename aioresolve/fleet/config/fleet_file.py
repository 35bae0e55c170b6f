"""fleet.yaml: the targets of a fleet, described in a file.

```yaml
interval: 30s            # between two requests to a target: 500ms, 30s, 2m, or a number of seconds
timeout: 10s             # of each request
max_concurrency: 64      # concurrent requests
defaults:                # for every target of that kind that does not set the field itself
  kubernetes: {namespace: training, kubeconfig: ~/.kube/config}
  tpu: {project: my-project, zone: us-central2-b}
targets:
  us-east:
    kubernetes:
      context: us-east
      jobs: {worker: app=trainer, ps: [app=ps, app=ps-spare]}
  tpu-a:
    tpu: {name: my-tpu, zone: "${ZONE:-us-central2-b}"}
  group-a:
    gce: {group: workers, project: my-project, zone: us-central2-b}
  fixed:
    static: {jobs: {worker: ["10.0.0.1:8470"]}}
  this-step:
    slurm: {jobs: {chief: 1, worker: 3}}
  this-job:
    sagemaker: {port: 2223}
  this-task:
    tf_config: {rpc_layer: grpc}
  both:
    union: [us-east, tpu-a]
```

Only `targets` is required. Each target has one kind. Its fields are the arguments of the constructor of its
resolver that a file can express, by the same names, except `jobs` (label selectors, addresses, or numbers of
tasks), `port` (`tf_server_port`, `port_base`), the `name` of a TPU (`tpu`), and the `group`
(`instance_group`) and `job_name` (`task_type`) of an instance group. `null` removes a default.

In any value, `${NAME}` is replaced by the environment variable, `${NAME:-default}` uses the default if the
variable is unset or empty, and `$$` is a dollar; between `{ }` and `[ ]` YAML requires quotes around them. No
message shows the value of a variable. A relative `kubeconfig` or `token_file` is relative to the fleet file,
and `~` is the home folder. Anchors, aliases and merge keys are supported; top-level fields that start with
`x-` may hold anchors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aioresolve._core.document import (
    Diagnostics,
    DocumentError,
    Location,
    MappingNode,
    decode,
    integer_reader,
    is_null,
    kind_of,
    parse_yaml,
    read_duration,
    suggestion,
)
from aioresolve.errors import ConfigurationError

from .targets import make_resolvers, read_defaults, read_targets
from .variables import TemplateBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioresolve._core.document import Node
    from aioresolve.resolver.base import ClusterResolver

MAX_FILE = 16 * 1024 * 1024
"""Bytes; about 100,000 targets."""

_SETTINGS: Mapping[str, Callable[[Node], Any]] = {
    "interval": read_duration,
    "timeout": read_duration,
    "max_concurrency": integer_reader(1, 100_000),
}
_FIELDS = (*_SETTINGS, "defaults", "targets")


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The content of a fleet file. A setting that the file does not have is None.

    Attributes:
        targets: the resolver of each target by its name, in the order of the file.
        interval: seconds between two requests to a target.
        timeout: seconds that a request may take, and each call of the resolvers.
        max_concurrency: the number of concurrent requests.
    """

    targets: Mapping[str, ClusterResolver] = field(repr=False)
    interval: float | None = None
    timeout: float | None = None
    max_concurrency: int | None = None


def read_fleet(path: str | os.PathLike[str], *, environ: Mapping[str, str] = os.environ) -> FleetFile:
    """Return the content of the fleet file at `path`. It blocks while it reads the file, and connects to
    nothing.

    Args:
        path: the file; for its format see `aioresolve.fleet.config.fleet_file`.
        environ: the variables that the file may refer to.

    Raises:
        ConfigurationError: (a ValueError) the file cannot be read, or it is invalid: the message has one line
            with file, line and field for each problem.
    """
    source = os.fsdecode(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{source}: cannot read the fleet file: {reason}") from error
    if len(content) > MAX_FILE:
        raise ConfigurationError(
            f"{source}: the fleet file is larger than {MAX_FILE} bytes",
            hint="Check that this is the right file.",
        )
    folder = os.path.dirname(os.path.abspath(source))
    diagnostics = Diagnostics()
    try:
        text = decode(content, source)
    except DocumentError as error:
        diagnostics.add_error(error)
    else:
        return fleet_of(text, source=source, folder=folder, environ=environ)
    raise diagnostics.as_configuration_error()


def fleet_of(
    text: str,
    *,
    source: str = "fleet.yaml",
    folder: str | None = None,
    environ: Mapping[str, str],
) -> FleetFile:
    """Return the content of a fleet file with this text. No I/O.

    Args:
        text: the text of the file.
        source: the path of the file, for messages.
        folder: the folder that relative paths start from; None for the folder of `source`.
        environ: the variables that the file may refer to.

    Raises:
        ConfigurationError: (a ValueError) the file is invalid: the message has one line with file, line and
            field for each problem.
    """
    diagnostics = Diagnostics()
    folder = os.path.dirname(source) if folder is None else folder
    fleet = None
    try:
        fleet = _read(text, source, folder, environ, diagnostics)
    except DocumentError as error:
        diagnostics.add_error(error)
    if fleet is None:
        raise diagnostics.as_configuration_error()
    return fleet


def _read(
    text: str,
    source: str,
    folder: str,
    environ: Mapping[str, str],
    diagnostics: Diagnostics,
) -> FleetFile | None:
    """Return the content of the file, or None; raise a problem after which others mean nothing."""
    root = parse_yaml(text, source, TemplateBuilder(environ, diagnostics), show_text=True)
    if root is None or is_null(root):
        raise DocumentError(Location(source, 1), "the fleet file is empty; it requires at least `targets:`")
    if not isinstance(root, MappingNode):
        raise DocumentError(root.location, f"must be a mapping with `targets:`, not {kind_of(root)}")
    settings = _read_settings(root, diagnostics)
    defaults = (
        read_defaults(root.values["defaults"], folder, diagnostics) if "defaults" in root.values else {}
    )
    if "targets" not in root.values:
        raise DocumentError(root.location, "has no `targets`; add at least one target below it")
    targets = read_targets(root.values["targets"], defaults, folder, diagnostics)
    if diagnostics:  # one of these problems may be why a constructor would reject a target
        return None
    resolvers = make_resolvers(targets, settings.get("timeout"), diagnostics)
    return None if diagnostics else FleetFile(MappingProxyType(resolvers), **settings)


def _read_settings(root: MappingNode, diagnostics: Diagnostics) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, node in root.values.items():
        if name in _SETTINGS and not is_null(node):
            try:
                settings[name] = _SETTINGS[name](node)
            except DocumentError as error:
                diagnostics.add_error(error)
        elif name not in _FIELDS and not name.startswith("x-"):
            diagnostics.add(
                root.location_of(name), f"unknown field of a fleet file; {suggestion(name, _FIELDS)}"
            )
    return settings
