"""Field case 16 and its kin: pairs of draft and target that start, and draft other words than were meant."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.preflight.child import ask_child
from engine_host.preflight.files import check_files
from engine_host.preflight.tokenizer_process import Answer, Request
from engine_host.preflight.tokenizer_process import answer as in_process
from engine_host.preflight.tokenizers import Party, check_alone, compare
from engine_host.preflight.tokens import SAMPLES, TokenizerError, Tokens, read_tokens
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding
from tests.unit.preflight.models import ALPHABET, MERGES, SPECIAL, make_model


def party(directory: Path) -> Party:
    files = check_files({"model": str(directory)}, {}).model
    return Party(name=files.name, directory=str(directory), vocab_size=files.vocab_size)


TARGET, DRAFT = Party(name="t", directory="t"), Party(name="d", directory="d")


def pair(tmp_path: Path, draft: dict[str, Any], target: dict[str, Any] | None = None, **how: Any) -> list[Finding]:
    both = [party(make_model(tmp_path / name, **kinds)) for name, kinds in (("target", target or {}), ("draft", draft))]
    return compare(read_tokens(both[0].directory), read_tokens(both[1].directory), *both, **how)


def test_the_same_tokenizer_in_two_directories_agrees(tmp_path: Path) -> None:
    assert pair(tmp_path, {}) == []


def test_two_exchanged_ids_are_refused_and_the_first_token_is_named_with_both_ids(tmp_path: Path) -> None:
    a, b = ALPHABET[70], ALPHABET[71]
    findings = pair(tmp_path, {"swap": (a, b)})
    assert [(finding.id, finding.severity) for finding in findings] == [("tokenizer.mismatch", Severity.ERROR)]
    text = findings[0].text
    assert "2 tokens" in text
    assert f"{a!r} is id 70 in the target" in text and "id 71" in text and f"its id 70 is {b!r}" in text


@given(st.lists(st.text(min_size=1, max_size=3), unique=True, min_size=2, max_size=30), st.data())
def test_of_any_tokens_that_changed_places_the_one_of_lowest_id_is_named(
    tokens: list[str], data: st.DataObject
) -> None:
    first, second = sorted(data.draw(st.lists(st.integers(0, len(tokens) - 1), min_size=2, max_size=2, unique=True)))
    ids = {token: id for id, token in enumerate(tokens)}
    exchanged = {**ids, tokens[first]: second, tokens[second]: first}
    (finding,) = compare(Tokens(ids, frozenset()), Tokens(exchanged, frozenset()), TARGET, DRAFT)
    assert (finding.id, finding.severity) == ("tokenizer.mismatch", Severity.ERROR)
    assert f"differ in 2 tokens, first {tokens[first]!r} is id {first} in the target" in finding.text
    assert compare(Tokens(ids, frozenset()), Tokens(dict(ids), frozenset()), TARGET, DRAFT) == []


def test_another_order_of_special_tokens_is_refused(tmp_path: Path) -> None:
    findings = pair(tmp_path, {"special": (SPECIAL[0], SPECIAL[2], SPECIAL[1])})
    assert [finding.id for finding in findings] == ["tokenizer.mismatch"]
    assert "<|im_start|>" in findings[0].text


def test_a_token_that_stands_where_the_other_has_another_is_refused(tmp_path: Path) -> None:
    findings = pair(tmp_path, {"special": (*SPECIAL[:2], "<|eot|>")})
    assert [finding.id for finding in findings] == ["tokenizer.mismatch"]
    assert "no such token" in findings[0].text and "'<|eot|>'" in findings[0].text


def test_tokens_that_only_one_has_at_the_end_are_a_warning(tmp_path: Path) -> None:
    findings = pair(tmp_path, {}, {"extra": ("<tool_call>", "</tool_call>")})
    assert [(finding.id, finding.severity) for finding in findings] == [("tokenizer.extra", Severity.WARNING)]
    assert "2 tokens are only in the target" in findings[0].text and "<tool_call>" in findings[0].text


def test_the_same_map_with_other_merges_is_refused_with_the_first_differing_token(tmp_path: Path) -> None:
    (finding,) = pair(tmp_path, {"merges": ()})
    assert (finding.id, finding.severity) == ("tokenizer.mismatch", Severity.ERROR)
    # "The": the target merges h and e, the draft does not.
    assert "token 2 is 'he'" in finding.text and "'h' (id" in finding.text
    target, draft = Tokens({"a": 1, "b": 2}, frozenset(), ((1, 2),)), Tokens({"a": 1, "b": 2}, frozenset(), ((1, 1),))
    (finding,) = compare(target, draft, TARGET, DRAFT)
    assert finding.id == "tokenizer.mismatch"
    assert "token 2 is 'b' (id 2) in the target, 'a' (id 1) in the draft" in finding.text


def test_an_encoding_that_ends_early_is_told_as_such() -> None:
    target, draft = Tokens({"a": 1}, frozenset(), ((1, 1),)), Tokens({"a": 1}, frozenset(), ((1,),))
    (finding,) = compare(target, draft, TARGET, DRAFT)
    assert "the end in the draft" in finding.text


def test_a_token_special_in_one_only_is_a_warning() -> None:
    target, draft = Tokens({"a": 1}, frozenset({"a"})), Tokens({"a": 1}, frozenset())
    (finding,) = compare(target, draft, TARGET, DRAFT)
    assert (finding.id, finding.severity) == ("tokenizer.special", Severity.WARNING)


def test_a_vocabulary_that_is_only_padded_differently_is_refused_in_those_words(tmp_path: Path) -> None:
    """#7252: 151936 against 152064, of one tokenizer. vLLM compares config.json and refuses."""
    findings = pair(tmp_path, {"vocab_size": 151936}, {"vocab_size": 152064})
    assert [(finding.id, finding.severity) for finding in findings] == [("tokenizer.vocab_size", Severity.ERROR)]
    assert "152064" in findings[0].text and "151936" in findings[0].text and "padding" in findings[0].text
    assert "use_heterogeneous_vocab" in findings[0].remedy


def test_a_mismatch_does_not_call_the_difference_of_sizes_padding(tmp_path: Path) -> None:
    findings = pair(tmp_path, {"vocab_size": 600, "swap": (ALPHABET[1], ALPHABET[2])})
    assert [finding.id for finding in findings] == ["tokenizer.mismatch", "tokenizer.vocab_size"]
    assert "padding" not in findings[1].text


def test_heterogeneous_vocabularies_are_told_by_what_they_share(tmp_path: Path) -> None:
    findings = pair(tmp_path, {"swap": (ALPHABET[1], ALPHABET[2]), "vocab_size": 600}, is_heterogeneous=True)
    assert [(finding.id, finding.severity) for finding in findings] == [("tokenizer.shared", Severity.INFO)]
    assert "100%" in findings[0].text


def test_a_token_without_an_embedding_is_warned_about(tmp_path: Path) -> None:
    model = party(make_model(tmp_path / "m", vocab_size=260))
    (finding,) = check_alone(read_tokens(model.directory), model)
    assert (finding.id, finding.severity) == ("tokenizer.beyond_model", Severity.WARNING)
    assert "0 to 259" in finding.text and str(len(ALPHABET) + len(MERGES) + len(SPECIAL) - 1) in finding.text


def test_padding_beyond_the_tokenizer_is_nothing_to_tell(tmp_path: Path) -> None:
    model = party(make_model(tmp_path / "m", vocab_size=512))
    assert check_alone(read_tokens(model.directory), model) == []


def test_a_file_that_is_no_tokenizer_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        read_tokens(tmp_path)


def test_the_samples_hold_what_tokenizers_disagree_about() -> None:
    text = "".join(SAMPLES)
    assert any(ord(char) > 0xFFFF for char in text), "an emoji"
    assert "\t" in text and "\n\n" in text and "  " in text
    assert any("\u4e00" <= char <= "\u9fff" for char in text) and "<|im_start|>" in text


async def test_the_comparison_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    target = party(make_model(tmp_path / "target"))
    draft = party(make_model(tmp_path / "draft", swap=(ALPHABET[1], ALPHABET[2])))
    request = Request(target=target, draft=draft, deadline_s=30)
    command = (sys.executable, "-m", "engine_host.preflight.tokenizer_process")
    ended = await ask_child(command, msgspec.json.encode(request), 30)
    answer = msgspec.json.decode(ended.output, type=Answer)
    assert [finding.id for finding in answer.pair] == ["tokenizer.mismatch"]
    assert answer.alone == [] and answer.unchecked == []
    assert answer == in_process(request)


def test_a_pair_that_cannot_be_read_is_still_compared_by_size(tmp_path: Path) -> None:
    target = party(make_model(tmp_path / "target", vocab_size=152064))
    draft = party(make_model(tmp_path / "draft", vocab_size=151936))
    (tmp_path / "draft" / "tokenizer.json").write_text("{}")
    answer = in_process(Request(target=target, draft=draft, deadline_s=30))
    assert [finding.id for finding in answer.pair] == ["tokenizer.vocab_size"]
    assert "could not be compared" in answer.pair[0].text
    (finding,) = answer.unreadable
    assert finding.id == "tokenizer.draft_broken" and "cannot be read" in finding.text
    assert answer.unchecked == []


def test_a_target_tokenizer_that_cannot_be_read_is_unchecked(tmp_path: Path) -> None:
    """The engine would read it itself, and say so."""
    target, draft = (party(make_model(tmp_path / name)) for name in ("target", "draft"))
    (tmp_path / "target" / "tokenizer.json").write_text("{}")
    answer = in_process(Request(target=target, draft=draft, deadline_s=30))
    assert answer.unreadable == [] and len(answer.unchecked) == 1 and "cannot be read" in answer.unchecked[0]


def test_a_draft_tokenizer_that_a_missing_library_would_read_is_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = (party(make_model(tmp_path / name)) for name in ("target", "draft"))
    (tmp_path / "draft" / "tokenizer.json").rename(tmp_path / "draft" / "tokenizer.model")
    monkeypatch.setitem(sys.modules, "transformers", None)
    answer = in_process(Request(target=target, draft=draft, deadline_s=30))
    assert answer.unreadable == [] and len(answer.unchecked) == 1


@pytest.mark.engine
def test_a_tokenizer_without_tokenizer_json_is_read_by_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    vocab = {"<|endoftext|>": 0, "h": 1, "i": 2, "hi": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh i\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    tokens = read_tokens(tmp_path, samples=("hi",))
    assert dict(tokens.vocab) == vocab and tokens.encodings == ((3,),)
    assert "<|endoftext|>" in tokens.special
