"""The real TensorFlow, imported once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tf() -> Any:
    """The module `tensorflow`. Importing it takes seconds and warns of what is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tensorflow")
