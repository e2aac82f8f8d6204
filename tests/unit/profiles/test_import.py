"""Imports of whatever kind: files that name files, what is refused, and that anything is a profile or an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.profiles.arguments import catalogue
from engine_host.profiles.importer import import_file, import_text, import_words
from engine_host.profiles.older_names import ENVIRONMENT, OLDER, OLDER_NESTED
from engine_host.protocol.errors import OperatorError


def test_a_whole_mapping_that_takes_the_place_of_the_files_says_what_goes(tmp_path: Path) -> None:
    """vLLM takes the last one as it is."""
    (tmp_path / "c.yaml").write_text("speculative-config: {method: ngram, prompt_lookup_max: 4}\n")
    (tmp_path / "start.sh").write_text("""vllm serve org/m --config c.yaml -sc '{"method": "suffix"}'\n""")
    found = import_file(tmp_path / "start.sh")
    assert found.tables["engine"]["speculative_config"] == {"method": "suffix"}
    assert any("speculative_config.prompt_lookup_max of the YAML is left out" in said for said in found.notices)


@pytest.mark.parametrize(
    "text",
    [
        "model: org/m\nspeculative-config: {num-speculative-tokens: 5}",
        "model: org/m\nspeculative-config.num-speculative-tokens: 5",
        """vllm serve org/m -sc '{"num-speculative-tokens": 5}'""",
    ],
)
def test_dashes_inside_a_mapping_are_told_and_become_vllms_names(text: str) -> None:
    found = import_text(text)
    assert found.tables["engine"]["speculative_config"] == {"num_speculative_tokens": 5}
    assert any("num-speculative-tokens is called num_speculative_tokens" in said for said in found.notices)


def test_options_count_more_than_the_file_of_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: org/file\nseed: 1\nmax-num-seqs: 8\n")
    (tmp_path / "start.sh").write_text("vllm serve org/m --seed 2 --config c.yaml\n")
    found = import_file(tmp_path / "start.sh")
    assert found.tables["engine"] == {"model": "org/m", "seed": 2, "max_num_seqs": 8}
    assert found.notices == []


def test_the_model_may_stand_in_the_file_of_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: org/file\n")
    assert import_words(["vllm", "serve", "--config", str(tmp_path / "c.yaml")]).tables["engine"]["model"] == "org/file"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("vllm serve org/m --seed", "--seed has no value"),
        ("vllm serve org/m --seed --port 1", "--seed has no value"),
        ("vllm serve org/m --seed x", "'x' is not a whole number"),
        ("vllm serve org/m --gpu-memory-utilization x", "'x' is not a number"),
        ("vllm serve org/m --speculative-config '{method: ngram}'", "is not JSON"),
        ("vllm serve 'org/m", "cannot be split"),
        ("vllm serve --seed 1", "names no model"),
        ("vllm bench", "no `vllm serve` in"),
        ("", "no `vllm serve` in"),
        ("seed: 1", "names no model"),
        ("model: [a", "is not YAML"),
        ("model: m\ncompilation-config: {a: 2024-01-01}", "a date or time"),
        ("model: m\ncompilation-config: {a: !!binary aGk=}", "compilation_config.a is a bytes"),
        ("model: m\ncompilation-config: &a {a: *a}", "nested too deeply"),
        ("model: m\nhf-overrides: {a: [{b: .nan}]}", "no finite number"),
        ("model: m\nhf-overrides: {a: [{b: 99999999999999999999}]}", "more than 64 bits"),
        ("vllm serve org/m --enforce-eager=perhaps", "neither true nor false"),
        ("vllm serve org/m --config none.yaml", "there is no file none.yaml"),
        ("# vllm-console: what.ever = 1\nvllm serve org/m", "expected a key and a value"),
        ("# vllm-console: switch.drain_timeout_s = \nvllm serve org/m", "expected a key and a value"),
        ("# vllm-console: switch.drain_timeout = 1\nvllm serve org/m", "unknown key switch.drain_timeout"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_remedy(text: str, fact: str) -> None:
    with pytest.raises(OperatorError) as caught:
        import_text(text)
    assert fact in caught.value.fact
    assert caught.value.remedy


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="there is no file"):
        import_file(tmp_path / "none.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(OperatorError, match="not UTF-8"):
        import_file(tmp_path / "bytes")


def test_words_in_another_encoding_are_refused() -> None:
    with pytest.raises(OperatorError, match="not UTF-8"):
        import_words(["vllm", "serve", "org/caf\udce9"])


def test_no_older_name_is_in_use_today() -> None:
    known = catalogue()
    assert not set(OLDER) & set(known.by_name)
    for table, keys in OLDER_NESTED.items():
        assert not set(keys) & set(known.nested[table])


def test_every_translation_leads_to_a_name_of_today() -> None:
    known = catalogue()
    targets = [older.target for older in OLDER.values() if older.target] + [name for name, _ in ENVIRONMENT.values()]
    for target in targets:
        head, _, inner = target.partition(".")
        assert head in known.by_name
        assert not inner or head not in known.nested or inner in known.nested[head]


words = st.one_of(
    st.sampled_from(
        ["vllm", "serve", "org/m", "--seed", "1", "-tp", "--", "-", "--x.y", "--x.y+", "=", "-O", "--config", "-sc"]
    ),
    st.sampled_from([flag for argument in catalogue().by_name.values() for flag in argument.flags]),
    st.text(max_size=8),
    st.builds("--{}={}".format, st.text(max_size=6), st.text(max_size=6)),
)


@given(given_words=st.lists(words, max_size=8))
def test_any_words_are_a_profile_or_an_operator_error(given_words: list[str]) -> None:
    try:
        found = import_words(["vllm", "serve", "org/m", *given_words])
    except OperatorError as error:
        assert error.remedy
    else:
        assert found.tables["engine"]["model"]
        assert found.toml()


@given(text=st.text() | st.builds("model: m\n{}: {}".format, st.text(max_size=9), st.text(max_size=9)))
def test_any_text_is_a_profile_or_an_operator_error(text: str) -> None:
    try:
        found = import_text(text)
    except OperatorError as error:
        assert error.remedy
    else:
        assert found.tables["engine"]["model"]


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("vllm serve org/m\n", encoding="utf-8-sig")
    assert import_file(tmp_path / "start.sh").tables["engine"] == {"model": "org/m"}
