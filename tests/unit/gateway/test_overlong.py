"""Prompts that are too long: counted only when need be, refused, cut, run in windows; never more than the KV cache."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from engine_host.engine.port import EngineFacts
from engine_host.gateway import prompt_tokens
from engine_host.gateway.asked import Asked
from engine_host.gateway.entry import Entry
from engine_host.gateway.overlong import Preparation
from engine_host.gateway.refusals import Refusal
from engine_host.profiles.throttle_table import Throttle
from tests.unit.gateway.scripted_app import Client, ScriptedApp, tokens_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def words(number: int) -> str:
    """Each of one token."""
    return " ".join(f"w{at:03}" for at in range(number))


WORDS = words(200)

FACTS = EngineFacts(
    vllm_version="0.32.0",
    model="m",
    max_model_len_tokens=64,
    block_size=16,
    total_blocks=18,
    capacity_tokens=19 * 16,
    speculation_method=None,
    k_max=None,
    prefix_caching=True,
    core_pids=(1,),
)
"""A cache for 288 tokens."""


def asked_for(path: str, **request: Any) -> Asked:
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"authorization", b"Bearer k"), (b"content-length", b"1"), (b"content-type", b"text/json")],
    }
    return Asked(scope, path, json.dumps(request).encode(), choices=1, class_rank=1, class_name="normal")


def completion(prompt: Any = WORDS, **request: Any) -> Asked:
    return asked_for(COMPLETIONS, model="m", prompt=prompt, **request)


def chat(*messages: dict[str, Any], **request: Any) -> Asked:
    return asked_for(CHAT, model="m", messages=list(messages), **request)


def user(content: Any = WORDS) -> dict[str, Any]:
    return {"role": "user", "content": content}


SYSTEM = {"role": "system", "content": "be kind"}


async def prepared(
    asked: Asked, app: ScriptedApp | None = None, *, facts: EngineFacts = FACTS, **table: Any
) -> Asked | Refusal:
    preparation = Preparation(lambda: facts, lambda: Throttle(**table))
    return await preparation.prepare(app or ScriptedApp(), asked)


async def admitted(asked: Asked, app: ScriptedApp | None = None, **table: Any) -> Asked:
    outcome = await prepared(asked, app, **table)
    assert isinstance(outcome, Asked), outcome
    return outcome


async def refused(asked: Asked, app: ScriptedApp | None = None, **table: Any) -> Refusal:
    outcome = await prepared(asked, app, **table)
    assert isinstance(outcome, Refusal)
    return outcome


async def answered(asked: Asked, app: ScriptedApp) -> Client:
    client = Client(asked.body)
    assert asked.through is not None
    await asked.through(app)(asked.scope, client.receive, client.send)
    return client


# Counting.


async def test_a_prompt_that_cannot_be_too_long_for_its_bytes_is_not_counted() -> None:
    app, roomy = ScriptedApp(), replace(FACTS, max_model_len_tokens=4096, capacity_tokens=8192, total_blocks=511)
    asked = completion(WORDS)
    assert await admitted(asked, app, facts=roomy) is asked
    assert not app.questions
    assert (await admitted(completion(WORDS * 10), app, facts=roomy)).prompt_tokens is not None


@pytest.mark.parametrize("text", ["\ufdfa" * 300, "a" * 3000])
async def test_a_prompt_is_counted_where_its_tokenizer_may_make_more_of_it(text: str) -> None:
    """One Arabic ligature is 18 letters once it is normalized, however a client wrote it down."""
    app, roomy = ScriptedApp(), replace(FACTS, max_model_len_tokens=4096, capacity_tokens=8192, total_blocks=511)
    for ensure_ascii in (True, False):
        body = json.dumps({"prompt": text}, ensure_ascii=ensure_ascii).encode()
        await admitted(replace(completion(), body=body), app, facts=roomy)
    assert len(app.questions) == 2


async def test_with_a_limit_on_prompt_tokens_every_prompt_is_counted() -> None:
    asked = replace(completion("one two", max_tokens=1), wants_prompt_tokens=True)
    assert (await admitted(asked)).prompt_tokens == 3  # with the special token
    asked = replace(completion("one two", add_special_tokens=False), wants_prompt_tokens=True)
    assert (await admitted(asked)).prompt_tokens == 2
    asked = replace(completion(["one", "two six"]), wants_prompt_tokens=True)
    assert (await admitted(asked)).prompt_tokens == 5
    asked = replace(completion([[1, 2], [3]]), wants_prompt_tokens=True)
    assert (await admitted(asked)).prompt_tokens == 3
    asked = replace(chat(SYSTEM, user("one")), wants_prompt_tokens=True)
    assert (await admitted(asked)).prompt_tokens == 3 + 5 + 4
    asked = replace(asked_for("/v1/responses", instructions="be kind", input=[user("one")]), wants_prompt_tokens=True)
    assert (await admitted(asked)).prompt_tokens == 4
    for path, request in (("/inference/v1/generate", {"token_ids": [1, 2]}), ("/v1/embeddings", {"input": [[1], [2]]})):
        asked = replace(asked_for(path, add_special_tokens=False, **request), wants_prompt_tokens=True)
        assert (await admitted(asked)).prompt_tokens == 2


async def test_vllm_is_asked_as_the_client_would_ask_it_and_about_what_its_template_takes() -> None:
    app = ScriptedApp()
    request = {"add_generation_prompt": False, "reasoning_effort": "none", "documents": [{"text": "d"}], "user": "u"}
    await admitted(chat(user("one"), chat_template_kwargs={"a": 1}, tools=[{"type": "function"}], **request), app)
    assert app.questions == [
        {
            "model": "m",
            "messages": [user("one")],
            "add_generation_prompt": False,
            "tools": [{"type": "function"}],
            "chat_template_kwargs": {
                "a": 1,
                "documents": [{"text": "d"}],
                "reasoning_effort": "none",
                "enable_thinking": False,
            },
        }
    ]
    (scope,) = app.scopes
    assert scope["path"] == "/tokenize" and scope["method"] == "POST"
    headers = dict(scope["headers"])
    assert headers[b"authorization"] == b"Bearer k" and headers[b"content-type"] == b"application/json"


async def test_asking_leaves_no_task_behind_that_waits_for_a_client() -> None:
    before = asyncio.all_tasks()
    left: list[asyncio.Task[Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        left.append(asyncio.create_task(receive()))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"count": 9}'})

    assert (await admitted(completion(), app)).prompt_tokens == 9  # type: ignore[arg-type]
    assert (await asyncio.wait_for(left[0], 5))["type"] == "http.disconnect"
    assert asyncio.all_tasks() == before


async def test_a_very_long_text_is_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_tokens, "PIECE_CHARACTERS", 100)
    monkeypatch.setattr("engine_host.gateway.prompts.PIECE_CHARACTERS", 100)
    for asked, around in ((completion(), 1), (chat(user()), 6)):
        app = ScriptedApp()
        told = await refused(asked, app)
        found = re.search(r"prompt has (\d+) tokens", told.message)
        assert found and 0 <= int(found[1]) - 200 - around <= 10  # a word cut in two at the end of a piece
        assert all(len(json.dumps(question)) < 300 for question in app.questions)


async def test_a_text_that_is_too_large_anyway_is_not_counted_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_tokens, "PIECE_CHARACTERS", 1000)
    monkeypatch.setattr("engine_host.gateway.prompts.PIECE_CHARACTERS", 1000)
    for asked in (completion(" ".join([WORDS] * 9)), chat(user(" ".join([WORDS] * 9)))):
        app = ScriptedApp()
        told = await refused(asked, app)
        assert told.reason == "too_large" and "more than 4" in told.message
        assert len(app.questions) <= 3
    asked = completion(" ".join([WORDS] * 9), truncate_prompt_tokens=10)
    assert await admitted(asked) == replace(asked, prompt_tokens=10)


async def test_what_vllm_would_not_tokenize_is_left_to_vllm() -> None:
    app = ScriptedApp()
    app.tokenize_status = 404
    asked = completion()
    assert await admitted(asked, app) is asked

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("no")

    assert await admitted(asked, broken) is asked  # type: ignore[arg-type]


DEEP = b'{"prompt": "x", "user": ' + b"[" * 3_000 + b"]" * 3_000 + b"}"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"prompt": {}}', b'{"prompt": [[1], "a"]}', b'{"prompt": []}', DEEP]
)
async def test_what_cannot_be_read_is_left_to_vllm(body: bytes) -> None:
    asked = replace(completion(), body=body, wants_prompt_tokens=True)
    assert (await admitted(asked)).body == body


async def test_nothing_is_decided_without_an_engine_or_its_context() -> None:
    asked = completion()
    assert await Preparation(lambda: None, Throttle).prepare(ScriptedApp(), asked) is asked
    assert await admitted(asked, facts=replace(FACTS, max_model_len_tokens=None)) is asked


# Refused.


async def test_an_overlong_prompt_is_refused_with_its_tokens_and_the_limit() -> None:
    refusal = await refused(completion())
    assert refusal.reason == "too_long" and refusal.status == 400 and refusal.param == "prompt"
    for figure in ("64 tokens", "201 tokens", "may have 63"):
        assert figure in refusal.message
    error = json.loads(refusal.body())["error"]
    assert error["code"] == "context_length_exceeded" and error["type"] == "invalid_request_error"
    assert (await refused(chat(user()))).param == "messages"


async def test_the_limit_is_the_one_that_vllm_applies() -> None:
    await admitted(completion(words(62), max_tokens=16))  # 62 and the special token
    await refused(completion(words(63), max_tokens=16))
    await admitted(completion(words(63), max_tokens=0, echo=True))
    older = replace(FACTS, reserves_answer=True)
    await admitted(completion(words(47), max_tokens=16), facts=older)
    refusal = await refused(completion(words(48), max_tokens=16), facts=older)
    assert "the 16 tokens that max_tokens asks for it may have 48" in refusal.message
    await refused(completion(words(48)), facts=older)  # 16 where it does not say
    await admitted(completion(words(48), max_tokens=None), facts=older)
    await refused(chat(user("a"), max_tokens=8, max_completion_tokens=60), facts=older)
    await admitted(chat(user("a"), max_tokens=60, max_completion_tokens=8), facts=older)


async def test_each_prompt_of_a_list_has_its_own_limit() -> None:
    await admitted(completion([words(50), words(50)]))
    assert "201 tokens" in (await refused(completion(["a", WORDS]))).message


async def test_images_are_not_counted_and_not_cut() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert (await admitted(chat(user([image, {"type": "text", "text": "what"}])))).prompt_tokens == 7
    for overlong in ("reject", "truncate", "segment"):
        refusal = await refused(chat(user([image, {"type": "text", "text": WORDS}])), overlong=overlong)
        assert "at least 206 tokens" in refusal.message
        assert overlong == "reject" or "it holds more than text" in refusal.message


# The KV cache.


@pytest.mark.parametrize("overlong", ["reject", "truncate", "segment"])
async def test_what_is_larger_than_the_kv_cache_is_refused_whatever_the_profile_says(overlong: str) -> None:
    for prompt in (WORDS + " " + WORDS, list(range(289))):
        refusal = await refused(completion(prompt), overlong=overlong)
        assert refusal.reason == "too_large" and refusal.status == 400
        assert "KV cache of this engine holds 288" in refusal.message
    assert (await refused(completion(list(range(288))))).reason == "too_long"


SHORT = replace(FACTS, total_blocks=3, capacity_tokens=64)
"""A cache for 48 tokens of a context of 64, as older releases start with."""


async def test_an_answer_that_would_outgrow_the_kv_cache_is_made_shorter() -> None:
    """vLLM would preempt it for ever once it alone has all blocks."""
    app = ScriptedApp()
    asked = await admitted(completion(list(range(40)), max_tokens=20), facts=SHORT)
    assert json.loads(asked.body)["max_tokens"] == 9
    assert (await answered(asked, app)).headers["x-vllm-console-max-tokens"] == "9"
    assert app.requests[0]["max_tokens"] == 9
    for request, name in (({}, "max_tokens"), ({"max_completion_tokens": 50}, "max_completion_tokens")):
        asked = await admitted(chat(user(words(24)), **request), facts=SHORT)
        assert json.loads(asked.body)[name] == 48 - 30 + 1
    asked = await admitted(completion(list(range(40)), max_tokens=9), facts=SHORT)
    assert asked.through is None
    assert (await refused(completion(list(range(49)), max_tokens=1), facts=SHORT)).reason == "too_large"


async def test_other_paths_are_kept_out_of_a_kv_cache_too_small_for_them() -> None:
    asked = asked_for("/v1/responses", input=WORDS)
    assert (await refused(asked, facts=SHORT)).reason == "too_large"
    await admitted(asked)


async def test_drafts_have_their_place_in_the_cache_too() -> None:
    speculating = replace(SHORT, k_max=4)
    await admitted(completion(list(range(44)), max_tokens=1), facts=speculating)
    assert (await refused(completion(list(range(45)), max_tokens=1), facts=speculating)).reason == "too_large"


# Cut.


@pytest.mark.parametrize("keep", ["start", "end"])
async def test_a_text_is_cut_to_leave_room_for_its_answer(keep: str) -> None:
    app = ScriptedApp()
    asked = await admitted(completion(max_tokens=16), app, overlong="truncate", truncate_keep=keep)
    kept = json.loads(asked.body)["prompt"]
    assert (WORDS.startswith if keep == "start" else WORDS.endswith)(kept)
    assert 48 - 5 <= asked.prompt_tokens <= 48 and asked.prompt_tokens == len(tokens_of(kept)) + 1
    assert asked.is_truncated
    client = await answered(asked, app)
    assert client.headers["x-vllm-console-truncated"] == f"cut={201 - asked.prompt_tokens}; kept={keep}"
    assert client.json["usage"]["prompt_tokens"] == asked.prompt_tokens
    assert app.requests[0]["max_tokens"] == 16


async def test_no_word_is_cut_in_two() -> None:
    asked = await admitted(completion(" ".join(["kindness"] * 100)), overlong="truncate")
    assert set(json.loads(asked.body)["prompt"].split()) == {"kindness"}


async def test_without_max_tokens_an_eighth_of_the_context_is_left() -> None:
    asked = await admitted(completion(list(range(100)), max_tokens=None), overlong="truncate")
    assert json.loads(asked.body)["prompt"] == list(range(100))[-56:]


async def test_only_the_overlong_prompts_of_a_list_are_cut() -> None:
    asked = await admitted(completion([[7], list(range(100))]), overlong="truncate")
    assert json.loads(asked.body)["prompt"] == [[7], list(range(52, 100))]
    assert asked.prompt_tokens == 49


async def test_of_a_chat_the_longest_message_of_the_user_is_cut() -> None:
    answer = {"role": "assistant", "content": "yes"}
    parts = [{"type": "text", "text": "see"}, {"type": "text", "text": WORDS}]
    for content in (WORDS, parts):
        app = ScriptedApp()
        asked = await admitted(
            chat(SYSTEM, user("hello"), answer, user(content), max_tokens=8), app, overlong="truncate"
        )
        messages = json.loads(asked.body)["messages"]
        assert messages[:3] == [SYSTEM, user("hello"), answer]
        kept = messages[3]["content"] if content is WORDS else messages[3]["content"][1]["text"]
        assert WORDS.endswith(kept) and len(kept) > 100
        assert content is WORDS or messages[3]["content"][0] == parts[0]
        client = await answered(asked, app)
        assert client.status == 200 and client.json["usage"]["prompt_tokens"] == asked.prompt_tokens <= 56


async def test_what_does_not_fit_however_it_is_cut_is_refused() -> None:
    refusal = await refused(chat({"role": "system", "content": WORDS}, user("a")), overlong="truncate")
    assert "leave no room" in refusal.message
    refusal = await refused(completion(max_tokens=64), overlong="truncate")
    assert "cannot be truncated to 0" in refusal.message


async def test_vllms_own_truncation_is_left_to_it() -> None:
    for overlong in ("reject", "truncate", "segment"):
        asked = completion(truncate_prompt_tokens=10)
        outcome = await admitted(asked, overlong=overlong)
        assert outcome == replace(asked, prompt_tokens=10)
    assert (await admitted(completion(truncate_prompt_tokens=-1))).prompt_tokens == 64
    asked = completion(list(range(100)), truncate_prompt_tokens=60)
    assert (await refused(asked, facts=SHORT)).reason == "too_large"


# In windows.


async def test_a_text_is_run_in_windows_that_overlap() -> None:
    app = ScriptedApp()
    asked = await admitted(completion(max_tokens=16), app, overlong="segment", segment_overlap_tokens=8)
    client = await answered(asked, app)
    assert client.headers["x-vllm-console-segmented"] == f"windows={asked.segments}; overlap=8"
    texts = [request["prompt"] for request in app.requests]
    assert len(texts) == asked.segments == 5
    at = 0
    for before, text in zip(["", *texts], texts, strict=False):
        found = WORDS.index(text)
        assert found <= at and (not before or 5 <= len(tokens_of(WORDS[found:at])) <= 8)
        assert len(tokens_of(text)) + 1 <= 48
        at = found + len(text)
    assert at == len(WORDS)
    assert client.json["usage"]["prompt_tokens"] == asked.prompt_tokens


async def test_token_ids_and_chats_are_run_in_windows_too() -> None:
    app = ScriptedApp()
    asked = completion(list(range(100)), max_tokens=14)
    asked = await admitted(asked, app, overlong="segment", segment_overlap_tokens=10)
    await answered(asked, app)
    assert [request["prompt"] for request in app.requests] == [
        list(range(50)),
        list(range(40, 90)),
        list(range(80, 100)),
    ]
    app = ScriptedApp()
    asked = await admitted(chat(SYSTEM, user(), max_tokens=14), app, overlong="segment", segment_overlap_tokens=0)
    client = await answered(asked, app)
    assert "".join(request["messages"][1]["content"] for request in app.requests) == WORDS
    assert all(request["messages"][0] == SYSTEM for request in app.requests)
    assert client.json["usage"]["prompt_tokens"] == asked.prompt_tokens


REASONS = [
    ({"n": 2}, "more than one choice"),
    ({"logprobs": 0}, "log probabilities"),
    ({"echo": True}, "its prompt back"),
    ({"prompt": [WORDS, "b"]}, "more than one prompt"),
    ({"response_format": {"type": "json_object"}}, "format"),
    ({"structured_outputs": {"choice": ["a"]}}, "format"),
    ({"use_beam_search": True}, "beam search"),
    ({"return_token_ids": True}, "token ids"),
    ({"messages": [user(), {"role": "assistant", "content": "a"}, user("b")]}, "beside a system message"),
    ({"messages": [user([{"type": "text", "text": WORDS}, {"type": "text", "text": "b"}])]}, "several parts"),
    ({"messages": [user()], "tools": [{"type": "function"}]}, "tools"),
    ({"messages": [user()], "logprobs": True}, "log probabilities"),
]


@pytest.mark.parametrize(("request_", "reason"), REASONS)
async def test_what_cannot_be_run_in_windows_is_refused_with_the_reason(request_: dict[str, Any], reason: str) -> None:
    asked = asked_for(CHAT, **request_) if "messages" in request_ else completion(**{"prompt": WORDS, **request_})
    refusal = await refused(asked, overlong="segment")
    assert refusal.reason == "too_long" and reason in refusal.message


async def test_windows_are_bounded_in_number_and_by_the_room_in_them() -> None:
    refusal = await refused(completion(), overlong="segment", segment_overlap_tokens=0, segment_max_windows=2)
    assert "about 5 segments" in refusal.message and "segment_max_windows" in refusal.message
    refusal = await refused(completion(list(range(200))), overlong="segment", segment_max_windows=2)
    assert "leave no room for text that overlaps by 64" in refusal.message
    refusal = await refused(completion(max_tokens=60), overlong="segment", segment_overlap_tokens=3)
    assert "windows of 4 tokens leave no room" in refusal.message


async def test_every_window_has_an_answer_that_fits_in_the_kv_cache() -> None:
    app = ScriptedApp()
    facts = replace(SHORT, total_blocks=5, capacity_tokens=90, max_model_len_tokens=88)
    asked = completion(list(range(80)), max_tokens=None)
    asked = await admitted(asked, app, facts=facts, overlong="segment", segment_overlap_tokens=4)
    assert asked.segments == 1


async def test_the_gate_counts_what_became_of_overlong_prompts() -> None:
    table, entry, app = Throttle(), Entry(), ScriptedApp()
    entry.gate.prepare = Preparation(lambda: FACTS, lambda: table).prepare
    entry.attach(app)
    statuses, told = [], []
    for overlong in ("reject", "truncate", "segment"):
        table = Throttle(overlong=overlong, segment_overlap_tokens=4)  # type: ignore[arg-type]
        asked = completion()
        client = Client(asked.body)
        asked.scope["headers"] = [(b"content-length", str(len(asked.body)).encode())]
        await entry(asked.scope, client.receive, client.send)
        statuses.append(client.status)
        told += [name for name in client.headers if name.startswith("x-vllm-console")]
    assert statuses == [400, 200, 200]
    assert told == ["x-vllm-console-truncated", "x-vllm-console-segmented"]
    counts = entry.gate.counts()
    assert counts.refused_by_reason == {"too_long": 1}
    assert (counts.truncated_total, counts.segmented_total) == (1, 1)
    assert (counts.inflight, counts.admitted_total) == (0, 2)
