"""What all errors have in common: their constructor, and copies of them."""

import copy
import pickle

import pytest

from aioresolve import errors
from aioresolve.errors import APIError, ProbeDeadlineError, ResolveError, TLSError

CLASSES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ResolveError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_error_is_copied_and_pickled_with_all_attributes(kind: type[ResolveError]) -> None:
    assert issubclass(kind, ResolveError)
    error = kind("no response", hint="Raise {timeout}.", retryable=True)
    for copied in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(copied) is kind
        assert str(copied) == "no response. Raise `timeout=`."
        assert (copied.args, vars(copied)) == (("no response",), vars(error))
    assert error != kind("no response")  # as any exception


def test_attributes_have_the_defaults_of_their_class_and_are_not_shared() -> None:
    assert (TLSError("no").retryable, TLSError("no", retryable=True).retryable) == (False, True)
    assert (APIError("no", status=503).status, APIError().retry_after) == (503, None)
    reasons = {"a:1": "silent"}
    error = ProbeDeadlineError("no", timeout=3.0, failures=reasons)
    reasons.clear()
    assert (error.failures, error.missing, error.retryable) == ({"a:1": "silent"}, {}, True)
    assert error.code == "deadline"
