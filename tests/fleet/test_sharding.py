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


@given(st.lists(st.text(), unique=True, min_size=1, max_size=50), st.integers(2, 40))
def test_removing_the_last_shard_moves_only_its_targets(names: list[str], shards: int) -> None:
    moved = {name for name in names if shard_of(name, shards) != shard_of(name, shards - 1)}
    assert moved == {name for name in names if shard_of(name, shards) == shards - 1}


@pytest.mark.parametrize("shards", [2, 3, 4, 7, 16])
def test_shards_have_about_the_same_size(shards: int) -> None:
    share = len(NAMES) / shards
    counts = Counter(shard_of(name, shards) for name in NAMES)
    assert set(counts) == set(range(shards))
    assert all(0.8 * share < count < 1.2 * share for count in counts.values())


@pytest.mark.parametrize("shards", [1, 4, 15])
def test_new_shard_takes_about_its_share(shards: int) -> None:
    moved = sum(shard_of(name, shards + 1) == shards for name in NAMES)
    assert 0.8 < moved * (shards + 1) / len(NAMES) < 1.2


def test_similar_names_are_spread_over_the_shards() -> None:
    assert len({shard_of(f"us-east-{zone}", 64) for zone in range(200)}) > 55


def test_assignment_does_not_change_between_versions() -> None:
    assert [shard_of(name, 5) for name in ("us-east", "us-west", "europe", "ü", "")] == [0, 1, 2, 2, 2]


class TestArgument:
    def test_none_is_the_whole_fleet(self) -> None:
        assert validate_shard(None, {"JOB_COMPLETION_INDEX": "1"}) is None

    @pytest.mark.parametrize("pair", [(0, 1), (0, 4), (3, 4)])
    def test_pair_is_accepted(self, pair: tuple[int, int]) -> None:
        assert validate_shard(pair, {"JOB_COMPLETION_INDEX": "2"}) == pair

    @pytest.mark.parametrize("index", [0, 3])
    def test_index_of_a_number_is_that_of_the_pod(self, index: int) -> None:
        assert validate_shard(4, {"JOB_COMPLETION_INDEX": str(index)}) == (index, 4)

    @pytest.mark.parametrize(
        "shard",
        [0, -1, True, "4", 4.0, (4, 4), (-1, 4), (0, 0), (0,), (0, 1, 2), (True, 2), ("0", 2), [0, 2]],
    )
    def test_other_values_are_rejected_with_an_example(self, shard: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"^`shard=`: .*such as \(0, 4\)"):
            validate_shard(shard, {"JOB_COMPLETION_INDEX": "0"})

    def test_error_without_the_variable_names_it(self) -> None:
        with pytest.raises(ConfigurationError, match=r"INDEX is not set\. Pass the index as well"):
            validate_shard(4, {})

    @pytest.mark.parametrize("index", ["", "one", "-1", "1.0", "²"])
    def test_invalid_index_in_the_variable_is_reported(self, index: str) -> None:
        with pytest.raises(ConfigurationError, match=r"_INDEX is '.*', not the index"):
            validate_shard(4, {"JOB_COMPLETION_INDEX": index})

    def test_index_beyond_the_shards_is_reported(self) -> None:
        with pytest.raises(ConfigurationError, match=r"\$JOB_COMPLETION_INDEX is 4, but there are 4 shards"):
            validate_shard(4, {"JOB_COMPLETION_INDEX": "4"})
