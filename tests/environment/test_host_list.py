"""The grammar of Slurm's host lists, and of its counts per node."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.environment.host_list import MAX_HOSTS, MAX_TASKS, expand_counts, expand_host_list

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1,n1", ["n1", "n1"]),
        ("n[9-011]", ["n9", "n10", "n11"]),
        ("a[1-2][3-4]", ["a13", "a14", "a23", "a24"]),
        ("n[1-2]-ib0", ["n1-ib0", "n2-ib0"]),
        ("n[1-2].cluster.local,login", ["n1.cluster.local", "n2.cluster.local", "login"]),
        ("n[0001-0003],m5,o[009-011]", ["n0001", "n0002", "n0003", "m5", "o009", "o010", "o011"]),
        ("n" * 62 + "[1]", ["n" * 62 + "1"]),
    ],
)
def test_list_stands_for_its_hosts_in_order(text: str, hosts: list[str]) -> None:
    assert expand_host_list(text) == hosts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "an entry is empty, or brackets are unbalanced"),
        ("a,,b", "an entry is empty"),
        ("n[1-2", "brackets are unbalanced"),
        ("n[[1-2]]", "brackets are unbalanced"),
        ("n[1-2,]", "'' between brackets is not a number"),
        ("n[1-2-3]", "'1-2-3' between brackets"),
        ("n[٣]", "between brackets is not a number"),
        ("n[5-3]", "the range 5-3 is descending"),
        ("n1 n2", "'n1 n2' is not a host name"),
        ("n" * 61 + "[1,100]", "is not a host name"),
        ("n[0-65536]", "more than 65536 hosts"),
        ("n[0-65535],m", "more than 65536 hosts"),
        ("n[0-9][0-9][0-9][0-9][0-9]", "more than 65536 hosts"),
        ("n[1-999999999]", "more than 65536 hosts"),
    ],
)
def test_malformed_or_too_long_list_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        expand_host_list(text)


def test_longest_list_is_expanded() -> None:
    hosts = expand_host_list("n[00000-65535]")
    assert (len(hosts), hosts[0], hosts[-1]) == (MAX_HOSTS, "n00000", "n65535")
    assert sum(expand_counts("4(x65536)")) == MAX_TASKS


RANGES = st.tuples(st.integers(0, 1200), st.integers(0, 12), st.integers(1, 5))
"""The first number, how many follow, and the width of a range."""

NAMES = st.text(alphabet="abz09", min_size=1, max_size=4).map("n".__add__)


def written(ranges: Sequence[tuple[int, int, int]]) -> tuple[str, list[str]]:
    """Return ranges between brackets, and the numbers that they stand for."""
    parts, numbers = [], []
    for first, more, width in ranges:
        texts = [f"{number:0{width}}" for number in range(first, first + more + 1)]
        parts.append(texts[0] if not more else f"{texts[0]}-{texts[-1]}")
        numbers += [f"{number:0{len(texts[0])}}" for number in range(first, first + more + 1)]
    return f"[{','.join(parts)}]", numbers


@st.composite
def host_lists(draw: st.DrawFn, suffixes: bool = True) -> tuple[str, list[str]]:
    """A list as text, and its hosts."""
    entries, hosts = [], []
    for _ in range(draw(st.integers(1, 4))):
        text, names = "", [""]
        for _ in range(draw(st.integers(0, 2))):
            name = draw(NAMES)
            brackets, numbers = written(draw(st.lists(RANGES, min_size=1, max_size=3)))
            text += name + brackets
            names = [each + name + number for each in names for number in numbers]
        if not text or (suffixes and draw(st.booleans())):
            name = draw(NAMES)
            text, names = text + name, [each + name for each in names]
        entries.append(text)
        hosts += names
    return ",".join(entries), hosts


@given(host_lists())
def test_written_list_is_read_back(case: tuple[str, list[str]]) -> None:
    text, hosts = case
    assert expand_host_list(text) == hosts


@pytest.fixture(scope="session")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `scontrol show hostnames` runs without a cluster."""
    if shutil.which("scontrol") is None:
        pytest.skip("Slurm's client is not installed")
    configuration: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    configuration.write_text("ClusterName=test\nSlurmctldHost=localhost\n")
    return {**os.environ, "SLURM_CONF": str(configuration)}


@pytest.mark.slow
@given(cases=st.lists(host_lists(suffixes=False), min_size=5, max_size=10))
def test_lists_are_those_of_scontrol(scontrol: dict[str, str], cases: list[tuple[str, list[str]]]) -> None:
    # Slurm 22.05 does not read text after brackets.
    text = ",".join(text for text, _ in cases)
    command = ["scontrol", "show", "hostnames", text]
    run = subprocess.run(command, capture_output=True, text=True, env=scontrol, timeout=60, check=True)
    assert expand_host_list(text) == run.stdout.split()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "is not a number such as 2, or 2") for text in ("", "2,", "2(x)", "2(3)", "2(x3)4", "٣")),
        *((text, "more than 65536 nodes or 262144") for text in ("1(x65537)", "999999", "4(x65536),1")),
    ],
)
def test_malformed_or_too_many_counts_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        expand_counts(text)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5)), min_size=1, max_size=9))
def test_written_counts_are_read_back(groups: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{number})" if number > 1 else str(count) for count, number in groups)
    assert expand_counts(text) == [count for count, number in groups for _ in range(number)]
