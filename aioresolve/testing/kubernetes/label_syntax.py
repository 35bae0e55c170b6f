"""What a label key and a label value may look like, with the sentences in which the API server says no.

Rules: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set.
"""

from __future__ import annotations

import re

__all__ = ["label_key_faults", "label_value_faults"]

_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_NAME})?"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"

_ENDS = "must start and end with an alphanumeric character"
_CHARACTERS = f"consist of alphanumeric characters, '-', '_' or '.', and {_ENDS}"
_WRONG_NAME = (
    f"must {_CHARACTERS} (e.g. 'MyName',  or 'my.name',  or '123-abc', "
    f"regex used for validation is '{_NAME}')"
)
_WRONG_KEY = (
    f"a valid label key {_WRONG_NAME} with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')"
)
_WRONG_VALUE = (
    f"a valid label must be an empty string or {_CHARACTERS} "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
)
_WRONG_PREFIX = (
    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    f"'.', and {_ENDS} (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)


def label_key_faults(key: str) -> list[str]:
    """What is wrong with `key` as the key of a label; nothing for a good one."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return [_WRONG_KEY]
    faults = []
    if slash and not prefix:
        faults.append("prefix part must be non-empty")
    elif slash and len(prefix) > 253:
        faults.append("prefix part must be no more than 253 bytes")
    elif slash and not re.fullmatch(_SUBDOMAIN, prefix):
        faults.append(_WRONG_PREFIX)
    if not name:
        faults.append("name part must be non-empty")
    elif len(name) > 63:
        faults.append("name part must be no more than 63 bytes")
    if not re.fullmatch(_NAME, name):
        faults.append(f"name part {_WRONG_NAME}")
    return faults


def label_value_faults(value: str) -> list[str]:
    """What is wrong with `value` as the value of a label; nothing for a good one."""
    faults = []
    if len(value) > 63:
        faults.append("must be no more than 63 bytes")
    if not re.fullmatch(_VALUE, value):
        faults.append(_WRONG_VALUE)
    return faults
