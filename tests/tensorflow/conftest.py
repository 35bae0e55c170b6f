"""The installed TensorFlow, imported once."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tf() -> Any:
    """The module `tensorflow`. Its import takes seconds and emits warnings that this project cannot fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensorflow = pytest.importorskip("tensorflow")
    # Otherwise each full garbage collection takes 0.2 s for TensorFlow's objects, and an event loop in debug
    # mode reports the test in which that happens for blocking it.
    gc.collect()
    gc.freeze()
    return tensorflow
