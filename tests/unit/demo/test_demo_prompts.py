"""The demo's requests fit the demo's profile, and make each of the console's numbers move."""

import tomllib
from itertools import islice

import pytest

from engine_host.demo.model import model_path
from engine_host.demo.place import PROFILE
from engine_host.demo.prompts import HANDBOOK, Prompt, prompts

ENGINE = tomllib.loads(PROFILE.read_text())["engine"]
MANY = list(islice(prompts(seed=1), 500))

FEWEST_CHARACTERS_A_TOKEN = 2.0
"""The demo's densest prompt, JSON, has 2.2 in this model's tokenizer."""


def text_of(prompt: Prompt) -> str:
    if "prompt" in prompt.body:
        return str(prompt.body["prompt"])
    return "".join(message["content"] for message in prompt.body["messages"])


def test_no_request_can_exceed_the_profiles_context() -> None:
    longest = max(len(text_of(p)) / FEWEST_CHARACTERS_A_TOKEN + p.body["max_tokens"] for p in MANY)
    assert longest < ENGINE["max_model_len"]


def test_the_same_seed_asks_the_same() -> None:
    assert MANY[:50] == list(islice(prompts(seed=1), 50))
    assert MANY[:50] != list(islice(prompts(seed=2), 50))


def test_every_kind_is_asked_streamed_and_whole_chat_and_completion() -> None:
    first = MANY[:100]
    assert {p.kind for p in first} == {"ask", "quote", "tell", "complete"}
    assert {(p.path, p.is_streamed) for p in first} == {
        (path, streamed) for path in ("/v1/chat/completions", "/v1/completions") for streamed in (True, False)
    }


def test_chats_share_a_prefix_of_several_blocks() -> None:
    shared = [p for p in MANY if p.kind == "ask"]
    assert all(p.body["messages"][0]["content"] == HANDBOOK for p in shared)
    assert len(HANDBOOK.split()) > 4 * ENGINE["block_size"]


def test_streams_ask_for_their_usage() -> None:
    assert all(p.body["stream_options"] == {"include_usage": True} for p in MANY if p.is_streamed)


def test_every_request_is_greedy() -> None:
    assert {p.body["temperature"] for p in MANY} == {0.0}


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_the_bound_on_tokens_holds_in_the_models_own_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(model_path()))
    for text in {text_of(p) for p in MANY}:
        assert len(tokenizer.encode(text)) <= len(text) / FEWEST_CHARACTERS_A_TOKEN
