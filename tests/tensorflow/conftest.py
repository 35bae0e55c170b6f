"""The real TensorFlow, imported once."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tf() -> Any:
    """The module `tensorflow`. Importing it takes seconds and warns of what is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensorflow = pytest.importorskip("tensorflow")
    # Else each full collection walks TensorFlow's objects, for some 0.2 s, and an event loop in debug mode
    # blames the test in which that happens for holding it.
    gc.collect()
    gc.freeze()
    return tensorflow
