"""The environments of real processes give the cluster, the rank and the coordinator of their launcher.

Each file of `recordings/launchers/` has the variables of all processes of one cluster: first the common ones,
then those of each process, in the order of the ranks. Its first lines are fields:

- what was recorded, and how;
- `source`: the source that `detect()` names;
- `tasks`: the addresses in the order of the ranks; or `error`: a part of the error that every process gets;
- `reader`, any number of times: a library and its class that reads the same variables, and must agree;
- `coordinator`: the variable that has the host of rank 0.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import aioresolve
from aioresolve import Task
from aioresolve.errors import ResolveError


@dataclass(frozen=True)
class Recording:
    """The environments of the processes of one cluster, in the order of their ranks, and its fields."""

    fields: dict[str, str]
    readers: tuple[str, ...]
    environs: tuple[dict[str, str], ...]


def read_recording(text: str) -> Recording:
    fields, readers = {}, []
    sections: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.startswith("# "):
            name, _, value = line[2:].partition(": ")
            if name == "reader":
                readers.append(value)
            else:
                fields[name] = value
        elif line.startswith("["):
            sections.append({})
        else:
            name, _, value = line.partition("=")
            sections[-1][name] = value
    common, *own = sections
    return Recording(fields, tuple(readers), tuple({**common, **each} for each in own))


RECORDINGS = {
    path.stem: read_recording(path.read_text())
    for path in sorted(Path(__file__).with_name("recordings").glob("launchers/*.txt"))
}
READERS = [
    # Importing TensorFlow takes seconds.
    pytest.param(name, reader, marks=[pytest.mark.slow] if "tensorflow" in reader else [])
    for name, recording in RECORDINGS.items()
    for reader in recording.readers
]


@pytest.fixture
def set_environ(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Replace the variables of this process. No time is spent on a metadata server."""
    monkeypatch.setattr("aioresolve.environment.detection.ABSENT_TIMEOUT", 0.05)
    monkeypatch.setattr("aioresolve.environment.detection.PRODUCT_FILE", Path("/none"))
    return lambda variables: monkeypatch.setattr(os, "environ", dict(variables))


@pytest.mark.parametrize("name", RECORDINGS)
async def test_cluster_rank_and_coordinator_are_those_of_the_launcher(
    name: str, set_environ: Callable[[dict[str, str]], None]
) -> None:
    fields, environs = RECORDINGS[name].fields, RECORDINGS[name].environs
    for rank, environ in enumerate(environs):
        set_environ(environ)
        if "error" in fields:
            with pytest.raises(ResolveError, match=re.escape(fields["error"])):
                await aioresolve.detect()
            continue
        detected = await aioresolve.detect()
        assert detected.source == fields["source"]
        tasks = fields["tasks"].split()
        assert (await detected.resolver.cluster_spec()).as_dict() == {"worker": tasks}
        expected = Task("worker", rank, tasks[rank], rank, len(environs))
        assert await detected.resolver.this_task() == expected
        if "coordinator" in fields:
            assert tasks[0].split(":")[0] == environ[fields["coordinator"]]


@pytest.mark.parametrize(("name", "reader"), READERS)
def test_libraries_read_the_same_from_the_variables(
    name: str, reader: str, set_environ: Callable[[dict[str, str]], None]
) -> None:
    library, class_name = reader.split()
    pytest.importorskip(library)
    environs = RECORDINGS[name].environs
    for rank, environ in enumerate(environs):
        set_environ(environ)
        if library == "jax":
            from jax._src.clusters import ClusterEnv

            # JAX uses the first one that is present.
            cluster = next(each for each in ClusterEnv._cluster_types if each.is_env_present())
            assert cluster.__name__ == class_name
            assert (cluster.get_process_count(), cluster.get_process_id()) == (len(environs), rank)
        else:
            from tensorflow.python.distribute.cluster_resolver import sagemaker_cluster_resolver

            resolver = getattr(sagemaker_cluster_resolver, class_name)()
            assert resolver.cluster_spec().as_dict() == {"worker": RECORDINGS[name].fields["tasks"].split()}
            assert resolver.task_id == rank
