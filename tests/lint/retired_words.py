"""Finds retired words in the source, the tests and the documents, so that they do not come back.

The project is written in plain technical English with one standard term per thing. The words below belonged
to an earlier private vocabulary, or have a standard replacement.

    python tests/lint/retired_words.py

prints `file:line: found -> replacement`, and exits with 1 if anything was found.

A match is whole words only, and `_` separates words, so that names are checked as well as sentences.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCANNED = (
    "aioresolve",
    "tests",
    "benchmarks",
    "docs",
    "examples",
    "*.md",
    "*.yml",
    "noxfile.py",
    "pyproject.toml",
)
SUFFIXES = {".md", ".proto", ".py", ".toml", ".yaml", ".yml"}
SKIPPED = re.compile(r"_pb2\.py|/tests/lint/|/__pycache__/|/benchmarks/results/")

WORDS = {
    # regular expression, matched without regard to case: what to write instead
    r"tell|tells|telling|told": "return, report, raise, log or say",
    r"mends?|mended|mending": "hint, fix",
    r"rooms?": "package, module, space",
    r"(?<!math\.)floors?": "layer",
    r"houses?": "package, project",
    r"stay|stays|stayed|staying": "remain; KeptOpen",
    r"guests?": "service",
    r"visit|visits|visited": "lease; acquire",
    r"(?<!users )(?<!user )(?<!person )(?<!people )(?<!anyone )(?<!readers )(?<!caller )who": "which, that",
    r"nobody|somebody|everybody|whoever": "no one; name the subject",
    r"all that": "everything that; name the subject",
    r"what is(?! new)": "name the subject",
    r"(is|are|was|were) to be": "must be, should be",
    r"(?<!there )(is|are|was|were) no(?! longer\b| more than\b| later\b| earlier\b) [a-z]+": "is not a",
    r"anew": "again",
    r"in words": "as text",
    r"(see|sees|saw|seen) to": "check",
    r"at hand": "available",
    r"any more": "any longer; cannot",
    r"(go|goes|going|went) on": "continue",
    r"befall|befalls|befell|befallen": "happen to",
    r"asker|askers|askings?|(ask|asks|asked)(?! to\b)": "request, send, client, principal",
    r"questions?": "request",
    r"(?-i:a)nswers?|answered|answering|unanswered": "response, respond, return",
    r"let [^.;,]{1,40} be": "if, leave",
    r"(say|says|said|saying) no": "deny, refuse",
    r"beside": "next to; in addition to",
    r"(errors?|failures?|faults?|outages?|trouble) (that |which )?pass(es)?": "retryable, transient",
}

EXACT = {
    # matched with regard to case
    r"(is|are|was|were) none": "is invalid, is missing",
    r"PASSING": "RETRYABLE_STATUSES",
    r"Mends|Exchange|Question|Asker|Grant": "hints, request context, APIRequest, Principal, AccessToken",
    r"KnownAnswers|OpenAnswer": "ETagCache, StreamingResponse",
    r"Newest|newest_of": "LatestValue, stream_latest",
    r"OwnVM|own_vm": "metadata source",
    r"Problems|_?Grower": "Diagnostics, node builder",
    r"PolledLoop|polled_loop|_?Errand": "gRPC loop guard, remote call",
    r"Pulse|Pen|ticking": "notifier, background writer, periodic call",
    r"disown|go_on|welcome": "detach_after_fork, spawn, start",
    r"checked_\w+": "validate_*",
}


def _pattern(words: dict[str, str], flags: re.RegexFlag) -> re.Pattern[str]:
    choices = "|".join(f"(?P<w{number}>{word})" for number, word in enumerate(words))
    return re.compile(rf"(?<![A-Za-z])(?:{choices})(?![A-Za-z])", flags)


PATTERNS = (
    (_pattern(WORDS, re.IGNORECASE), list(WORDS.values())),
    (_pattern(EXACT, re.NOFLAG), list(EXACT.values())),
)


def files() -> Iterator[Path]:
    """Yield every text file of the project that is checked."""
    for path in sorted(path for name in SCANNED for path in ROOT.glob(name)):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in SUFFIXES and file.is_file() and not SKIPPED.search(file.as_posix()):
                yield file


def findings(file: Path) -> Iterator[str]:
    """Yield line number, found text and replacement for each retired word in `file`."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        for pattern, replacements in PATTERNS:
            for match in pattern.finditer(line):
                group = next(name for name, text in match.groupdict().items() if text is not None)
                yield f"{number}: {match[0]!r} -> {replacements[int(group[1:])]}"


def main() -> int:
    """Print every finding; return 1 if there is one."""
    found = [f"{file.relative_to(ROOT)}:{finding}" for file in files() for finding in findings(file)]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(found)} retired words", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
