"""The grammar of Slurm's host lists, and of its counts per node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aioresolve.environment.slurm_tasks import MAX_HOSTS, MAX_TASKS, expand_counts, expand_host_list

LISTS = {
    "n1,n1": ["n1", "n1"],
    "n[9-011]": ["n9", "n10", "n11"],
    "n[99999]": ["n99999"],
    "a[1-2][3-4]": ["a13", "a14", "a23", "a24"],
    "a[1-2]b[08-10,3]": ["a1b08", "a1b09", "a1b10", "a1b3", "a2b08", "a2b09", "a2b10", "a2b3"],
    "n[0001-0003],m5,o[009-011]": ["n0001", "n0002", "n0003", "m5", "o009", "o010", "o011"],
    "n" * 62 + "[1]": ["n" * 62 + "1"],
}


@pytest.mark.parametrize("text", LISTS)
def test_list_stands_for_its_hosts_in_order(text: str) -> None:
    assert expand_host_list(text) == LISTS[text]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's client is not installed")
def test_lists_are_those_of_scontrol(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=test\nSlurmctldHost=localhost\n")
    environ = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    command = ["scontrol", "show", "hostnames", ",".join(LISTS)]
    run = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=True)
    assert expand_host_list(",".join(LISTS)) == run.stdout.split()


def test_text_may_follow_brackets() -> None:  # which Slurm 22.05 does not read
    assert expand_host_list("n[1-2]-ib0.local,login") == ["n1-ib0.local", "n2-ib0.local", "login"]


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "is not a number such as 2, or 2") for text in ("", "2,", "2(x)", "2(3)", "2(x3)4", "٣")),
        *((text, "more than 65536 nodes or 262144") for text in ("1(x65537)", "999999", "5(x65536)")),
    ],
)
def test_malformed_or_too_many_counts_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        expand_counts(text)
