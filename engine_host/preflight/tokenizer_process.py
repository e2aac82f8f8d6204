"""Reads and compares tokenizers in a process of its own: a vocabulary of 150,000 tokens as Python objects takes most of
a second under the interpreter's lock, which the host's streams must not feel.

    python -m engine_host.preflight.tokenizer_process < request.json > answer.json
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from engine_host.protocol.profiles import Finding

from .files import has_tokenizer
from .tokenizers import Party, broken_draft, check_alone, compare, compare_sizes, missing_draft
from .tokens import BrokenTokenizerError, TokenizerError, Tokens, read_tokens


class Request(msgspec.Struct, frozen=True, kw_only=True):
    target: Party
    draft: Party | None = None
    is_heterogeneous: bool = False
    trust_remote_code: bool = False
    deadline_s: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    alone: list[Finding] = []
    """About the target's own tokenizer."""
    pair: list[Finding] = []
    unreadable: list[Finding] = []
    """The draft's own tokenizer is missing or broken: an error if the draft is a model that drafts words, of no
    concern if it is a head on the target's hidden states."""
    unchecked: list[str] = []
    """Why something could not be read."""


def main() -> int:
    answer_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever transformers prints is log, not answer
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    # Outlives no host: the default action ends the process even while it hangs in native code.
    signal.alarm(int(request.deadline_s) + 5)
    with answer_to:
        answer_to.write(msgspec.json.encode(answer(request)))
    return 0


def answer(request: Request) -> Answer:
    unchecked: list[str] = []
    target = _read(request.target, request, unchecked)
    alone = check_alone(target, request.target) if target is not None else []
    if request.draft is None:
        return Answer(alone=alone, unchecked=unchecked)
    unreadable: list[Finding] = []
    if request.draft.directory == request.target.directory:
        draft = target
    elif target is not None and not has_tokenizer(Path(request.draft.directory)):
        draft = None
        unreadable.append(missing_draft(request.draft))
    else:
        draft = _read(request.draft, request, unchecked, unreadable)
    if target is None or draft is None:
        pair = [] if request.is_heterogeneous else compare_sizes(request.target, request.draft, is_same_map=None)
        return Answer(alone=alone, pair=pair, unreadable=unreadable, unchecked=unchecked)
    pair = compare(target, draft, request.target, request.draft, is_heterogeneous=request.is_heterogeneous)
    return Answer(alone=alone, pair=pair, unchecked=unchecked)


def _read(
    party: Party, request: Request, unchecked: list[str], unreadable: list[Finding] | None = None
) -> Tokens | None:
    """None when it cannot be read. A broken one goes to `unreadable` where that is given, all else to `unchecked`."""
    try:
        return read_tokens(party.directory, trust_remote_code=request.trust_remote_code)
    except BrokenTokenizerError as fault:
        if unreadable is None:
            unchecked.append(f"the tokenizer of {party.name}: {fault}")
        else:
            unreadable.append(broken_draft(party, str(fault)))
        return None
    except TokenizerError as fault:
        unchecked.append(f"the tokenizer of {party.name}: {fault}")
        return None


if __name__ == "__main__":
    sys.exit(main())
