"""Sharding: which of several processes takes which targets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError
from aioresolve.fleet.sharding import shard_of, validate_shard

NAMES = [f"cluster-{number}" for number in range(4000)]
SHARDS = st.integers(1, 40)


@given(st.text(st.characters(exclude_categories=())), SHARDS)
def test_every_name_belongs_to_one_shard(name: str, shards: int) -> None:
    assert 0 <= shard_of(name, shards) < shards
    assert shard_of(name, 1) == 0


@given(st.text(), SHARDS)
def test_new_shard_takes_from_the_others_and_nothing_else_moves(name: str, shards: int) -> None:
    assert shard_of(name, shards + 1) in {shard_of(name, shards), shards}


def test_shards_have_about_the_same_size() -> None:
    for shards in (2, 3, 4, 7, 16):
        share = len(NAMES) / shards
        counts = Counter(shard_of(name, shards) for name in NAMES)
        assert set(counts) == set(range(shards))
        assert all(0.8 * share < count < 1.2 * share for count in counts.values())


def test_assignment_does_not_change_between_versions() -> None:
    assert [shard_of(name, 5) for name in ("us-east", "us-west", "europe", "ü", "")] == [0, 1, 2, 2, 2]


class TestArgument:
    def test_shard_is_none_or_a_pair_or_a_number_with_the_index_of_the_pod(self) -> None:
        environ = {"JOB_COMPLETION_INDEX": "2"}
        assert validate_shard(None, environ) is None
        assert [validate_shard(pair, environ) for pair in ((0, 1), (3, 4))] == [(0, 1), (3, 4)]
        assert validate_shard(3, environ) == (2, 3)
        assert validate_shard(4, {"JOB_COMPLETION_INDEX": "0"}) == (0, 4)

    def test_other_values_are_rejected_with_an_example(self) -> None:
        shards: list[Any] = [0, True, "4", 4.0, (4, 4), (-1, 4), (0, 0), (0,), (0, 1, 2), (True, 2), [0, 2]]
        for shard in shards:
            with pytest.raises(ConfigurationError, match=r"^`shard=`: .*such as \(0, 4\)"):
                validate_shard(shard, {"JOB_COMPLETION_INDEX": "0"})

    def test_number_of_shards_has_a_limit(self) -> None:
        assert validate_shard((999, 1000), {}) == (999, 1000)
        for shard in ((0, 1001), 1001):
            with pytest.raises(ConfigurationError, match=r"^`shard=`: 1001 shards are more than 1,000"):
                validate_shard(shard, {"JOB_COMPLETION_INDEX": "0"})

    def test_error_without_an_index_names_the_variable(self) -> None:
        with pytest.raises(ConfigurationError, match=r"INDEX is not set\. Pass the index as well"):
            validate_shard(4, {})
        for index in ("", "one", "-1", "1.0", "²"):
            with pytest.raises(ConfigurationError, match=r"_INDEX is '.*', not the index"):
                validate_shard(4, {"JOB_COMPLETION_INDEX": index})

    def test_index_beyond_the_shards_is_reported(self) -> None:
        with pytest.raises(ConfigurationError, match=r"\$JOB_COMPLETION_INDEX is 4, but there are 4 shards"):
            validate_shard(4, {"JOB_COMPLETION_INDEX": "4"})
