"""What a request costs, read from its body as leniently as vLLM reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.gateway.asked import choices_of, priority_of, read_fields


def choices(path: str, body: Any) -> int:
    fields = read_fields(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert fields is not None
    return choices_of(path, fields)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/completions", {"prompt": "one"}, 1),
        ("/v1/completions", {"prompt": "one", "n": 4}, 4),
        ("/v1/completions", {"prompt": ["one", "two", "three"], "n": 2}, 6),
        ("/v1/completions", {"prompt": [1, 2, 3, 4]}, 1),
        ("/v1/completions", {"prompt": [[1, 2], [3, 4]]}, 2),
        ("/v1/completions", {"prompt": []}, 1),
        ("/v1/completions", b'{"prompt": [ \n 1, 2]}', 1),
        ("/v1/completions", b'{"prompt": [' + b" " * 100 + b'"one", "two"]}', 2),
        ("/v1/completions", b'{"prompt": [' + b" " * 100 + b"1, 2]}", 1),
        ("/v1/chat/completions", {"messages": [{}, {}, {}], "n": 3}, 3),
        ("/v1/chat/completions", {"messages": [{}], "documents": ["a", "b"]}, 1),
        ("/v1/chat/completions/batch", {"messages": [[{}], [{}], [{}, {}]]}, 3),
        ("/v1/embeddings", {"input": ["a", "b", "c"]}, 3),
        ("/v1/embeddings", {"input": "a"}, 1),
        ("/score", {"text_1": "q", "text_2": ["a", "b", "c", "d"]}, 4),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}, 2),
        ("/v2/embed", {"texts": ["a", "b"]}, 2),
        ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": {"n": 5}}, 5),
        ("/inference/v1/generate", {"token_ids": [1, 2]}, 1),
        ("/invocations", {"prompt": ["a", "b"], "n": 2}, 4),
        ("/v1/responses", {"input": [{}, {}]}, 1),
    ],
)
def test_every_choice_of_every_prompt_counts(path: str, body: Any, expected: int) -> None:
    assert choices(path, body) == expected


@pytest.mark.parametrize(
    ("n", "expected"),
    [("4", 4), (4.0, 4), (None, 1), (0, 1), (-2, 1), ([], 1), ("many", 1), (True, 1), (10**9, 16_384)],
)
def test_an_n_counts_as_pydantic_takes_it(n: Any, expected: int) -> None:
    assert choices("/v1/completions", {"prompt": "x", "n": n}) == expected


@pytest.mark.parametrize(("value", "expected"), [(-3, -3), (7, 7), ("-2", -2), (None, 0), ({}, 0)])
def test_the_priority_is_vllms(value: Any, expected: int) -> None:
    fields = read_fields(json.dumps({"priority": value}).encode())
    assert fields is not None and priority_of(fields) == expected


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b"nonsense"])
def test_what_vllm_will_refuse_as_no_json_object_is_known_as_that(body: bytes) -> None:
    assert read_fields(body) is None


@pytest.mark.parametrize("before", [b"", b'"temperature": NaN, '])
@pytest.mark.parametrize("field", [b"user", b"n", b"prompt"])
def test_what_is_nested_too_deeply_is_known_as_that_however_it_is_read(before: bytes, field: bytes) -> None:
    with pytest.raises(RecursionError):
        read_fields(b"{" + before + b'"' + field + b'": ' + b"[" * 3_000 + b"]" * 3_000 + b"}")


@pytest.mark.parametrize(
    "body",
    [
        b'{"n": 3, "prompt": "x", "temperature": NaN}',
        b'{"n": 3, "prompt": "\\ud800"}',
        '{"n": 3, "prompt": "x"}'.encode("utf-16"),
        b'{"n": 1, "prompt": "x", "n": 3}',
    ],
)
def test_what_only_python_reads_as_json_is_no_way_past_the_gate(body: bytes) -> None:
    assert json.loads(body)["n"] == 3
    assert choices("/v1/completions", body) == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["n", "prompt", "input", "messages", "priority", "sampling_params"]), JSON))
def test_whatever_a_field_holds_the_answer_is_a_number_of_choices(body: dict[str, Any]) -> None:
    fields = read_fields(json.dumps(body).encode())
    assert fields is not None
    for path in ("/v1/completions", "/v1/embeddings", "/inference/v1/generate", "/v1/chat/completions/batch"):
        assert choices_of(path, fields) >= 1
    assert isinstance(priority_of(fields), int)
