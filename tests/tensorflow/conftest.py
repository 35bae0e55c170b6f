"""The installed TensorFlow, imported once."""

import gc
import warnings
from types import SimpleNamespace
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


@pytest.fixture(scope="session")
def ours(tf: Any) -> Any:
    """The module that replaces `tf.distribute.cluster_resolver`."""
    import aioresolve.tensorflow

    return aioresolve.tensorflow


@pytest.fixture(scope="session")
def theirs(tf: Any) -> Any:
    """The names of `tf.distribute.cluster_resolver`, and those that TensorFlow has elsewhere."""
    # TensorFlow does not export this one.
    from tensorflow.python.distribute.cluster_resolver import sagemaker_cluster_resolver as sagemaker

    others = {
        "ClusterSpec": tf.train.ClusterSpec,
        "SageMakerClusterResolver": sagemaker.SageMakerClusterResolver,
    }
    return SimpleNamespace(**vars(tf.distribute.cluster_resolver), **others)


@pytest.fixture(params=["tensorflow", "aioresolve"])
def api(request: pytest.FixtureRequest) -> Any:
    """TensorFlow's classes, and then aioresolve's: a test that uses it is one program with one result."""
    return request.getfixturevalue("theirs" if request.param == "tensorflow" else "ours")
