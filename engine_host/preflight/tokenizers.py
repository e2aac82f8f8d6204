"""Draft and target compared token by token.

vLLM passes token ids from the draft model to the target and compares nothing but the size of the vocabularies. Two
tokenizers that differ in one id let the engine start and then draft other words than were meant, and no error ever
says so: hence a difference refuses the profile here.
"""

from __future__ import annotations

import msgspec

from engine_host.protocol.profiles import Finding

from .findings import error, info, warning
from .tokens import SAMPLES, Tokens

_SHOWN_CHARS = 40


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """Target or draft, as far as tokenizers are concerned."""

    name: str
    directory: str
    vocab_size: int | None = None
    """Rows of the embedding, by config.json."""


def compare(
    target: Tokens, draft: Tokens, target_party: Party, draft_party: Party, *, is_heterogeneous: bool = False
) -> list[Finding]:
    """`is_heterogeneous`: `use_heterogeneous_vocab` is on, so vLLM drafts only tokens that both have."""
    sizes = f"target {len(target.vocab):,} tokens, draft {len(draft.vocab):,}"
    if is_heterogeneous:
        shared = sum(1 for token in draft.vocab if token in target.vocab)
        share = shared / max(1, len(target.vocab))
        text = (
            f"draft and target share {shared:,} tokens, {share:.0%} of the target's ({sizes}); only those are drafted"
        )
        return [info("tokenizer.shared", text) if share >= 0.5 else warning("tokenizer.shared", text)]
    findings = _compare_maps(target, draft, sizes)
    if not findings:
        findings += _compare_encodings(target, draft)
    if not any(finding.id == "tokenizer.mismatch" for finding in findings):
        findings += _compare_special(target, draft)
    return findings + compare_sizes(target_party, draft_party, is_same_map=not findings)


def compare_sizes(target: Party, draft: Party, *, is_same_map: bool | None) -> list[Finding]:
    """The rows of the two embeddings, which vLLM wants equal. Models of one family are padded differently."""
    if target.vocab_size is None or draft.vocab_size is None or target.vocab_size == draft.vocab_size:
        return []
    why = {
        True: "the tokenizers are the same, the difference is padding, and still ",
        False: "",
        None: "the tokenizers could not be compared; ",
    }[is_same_map]
    return [
        error(
            "tokenizer.vocab_size",
            f"vocab_size is {target.vocab_size} in {target.name} and {draft.vocab_size} in {draft.name}: {why}"
            "vLLM refuses the pair",
            "take a draft with the same vocab_size in its config.json (of Qwen2.5, 7B and larger have 152064, smaller "
            "ones 151936), or set use_heterogeneous_vocab = true in [engine.speculative_config]",
        )
    ]


DRAFT_BROKEN = "tokenizer.draft_broken"
_UNSEEN = "it cannot be compared with the target's, and a pair that differs drafts other words without any error"


def broken_draft(draft: Party, why: str) -> Finding:
    return error(
        DRAFT_BROKEN,
        f"the draft's tokenizer: {why}: {_UNSEEN}",
        f"copy the tokenizer files that came with {draft.name} there again, or take "
        'method = "ngram" in [engine.speculative_config]',
    )


def missing_draft(draft: Party) -> Finding:
    return error(
        "tokenizer.draft_missing",
        f"the draft has no tokenizer: no tokenizer.json in {draft.directory}: {_UNSEEN}",
        f"copy the tokenizer.json that came with {draft.name} there (not the target's), or take "
        'method = "ngram" in [engine.speculative_config]',
    )


def check_alone(tokens: Tokens, party: Party) -> list[Finding]:
    """A token that the model has no embedding for."""
    if party.vocab_size is None or not tokens.vocab:
        return []
    token, highest = max(tokens.vocab.items(), key=lambda item: item[1])
    if highest < party.vocab_size:
        return []
    return [
        warning(
            "tokenizer.beyond_model",
            f"token {_shown(token)} has id {highest}, {party.name} has embeddings for 0 to {party.vocab_size - 1}: "
            "a prompt with it fails",
            "use the tokenizer that came with the model",
        )
    ]


def _compare_maps(target: Tokens, draft: Tokens, sizes: str) -> list[Finding]:
    other_ids = {id: token for token, id in draft.vocab.items()}
    mismatch: tuple[int, str] | None = None
    differing = 0
    for token, id in target.vocab.items():
        theirs = draft.vocab.get(token)
        at_id = other_ids.get(id)
        if theirs == id or (theirs is None and at_id is None):
            continue
        differing += 1
        if mismatch is None or id < mismatch[0]:
            has = f"id {theirs}" if theirs is not None else "no such token"
            instead = f", its id {id} is {_shown(at_id)}" if at_id is not None else ""
            mismatch = id, f"{_shown(token)} is id {id} in the target; the draft has {has}{instead}"
    if mismatch is not None:
        return [
            error(
                "tokenizer.mismatch",
                f"draft and target tokenizers differ in {differing:,} tokens, first {mismatch[1]} ({sizes}): "
                "ids pass between the two unchecked, so drafts would mean other words",
                "take a draft of the same model family, or set use_heterogeneous_vocab = true in "
                '[engine.speculative_config], or method = "ngram"',
            )
        ]
    findings = []
    for name, ours, others in (("target", target, draft), ("draft", draft, target)):
        if extra := sorted((id, token) for token, id in ours.vocab.items() if token not in others.vocab):
            consequence = "drafts never propose them" if name == "target" else "a draft of one is never accepted"
            findings.append(
                warning(
                    "tokenizer.extra",
                    f"{len(extra):,} tokens are only in the {name}'s tokenizer, first {_shown(extra[0][1])} "
                    f"(id {extra[0][0]}): {consequence}",
                )
            )
    return findings


def _compare_encodings(target: Tokens, draft: Tokens) -> list[Finding]:
    for text, ours, theirs in zip(SAMPLES, target.encodings, draft.encodings, strict=False):
        if ours == theirs:
            continue
        place = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        names = {id: token for token, id in target.vocab.items()}
        first, second = (
            f"{_shown(names.get(ids[place], '?'))} (id {ids[place]})" if place < len(ids) else "the end"
            for ids in (ours, theirs)
        )
        return [
            error(
                "tokenizer.mismatch",
                f"draft and target encode {_shown(text)} differently: token {place + 1} is {first} in the target, "
                f"{second} in the draft, with the same token-to-id map",
                'take a draft of the same model family, or method = "ngram"',
            )
        ]
    return []


def _compare_special(target: Tokens, draft: Tokens) -> list[Finding]:
    if not (differing := sorted(target.special ^ draft.special)):
        return []
    token = differing[0]
    holder = "target" if token in target.special else "draft"
    return [
        warning(
            "tokenizer.special",
            f"{len(differing)} tokens are special in one tokenizer only, first {_shown(token)} in the {holder}: "
            "the draft may be trained on another chat format",
            "compare tokenizer_config.json of both; the acceptance rate tells whether it matters",
        )
    ]


def _shown(token: str | None) -> str:
    text = repr(token)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…" + text[-1]
