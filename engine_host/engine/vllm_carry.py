"""Carrying requests from one vLLM engine to the next, below the API and above the engine core.

vLLM splits a request in two: the front end (in this process) holds its stream, its detokeniser, its stop strings, its
log probabilities and its counts; the engine core (a child process) holds its KV blocks and samples its tokens. Only
the core goes away in a switch. So the front-end half is kept as it stands and moved into the new engine's front end,
and the core gets the request anew with the tokens so far behind its prompt. The client's stream pauses and goes on:
no text is cut or spliced, no token is sent twice, usage counts the same prompt, and a character of several bytes that
straddles the switch comes out whole.

What the core alone knew is lost, so a request whose future depends on it is not carried: see `why_not`.

Reads vLLM objects by attribute and imports nothing of vLLM at module level, like everything outside `vllm_engine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

_SETTLE_S = 0.02
"""Between the last output in the queue and the end of its processing by vLLM's output loop."""
_SETTLE_ROUNDS = 50
"""How often that is waited for at most."""
_PRUNE_AT = 256
"""How many more requests than alive ones the ledger remembers before it forgets the finished."""


@dataclass(frozen=True)
class CarriedRequest:
    """One request on its way from engine to engine: vLLM's front-end state and the request it was started with."""

    request_id: str
    state: Any
    request: Any
    is_replayed: bool
    """Starts over in the new engine; nothing of it had reached the client."""

    @property
    def total_tokens(self) -> int:
        """Prompt and output at its longest."""
        return len(self.request.prompt_token_ids) + (self.request.sampling_params.max_tokens or 0)


class Ledger:
    """Remembers the engine-core request of every unfinished request of one AsyncLLM.

    vLLM forgets it once it is sent; its sampling parameters are needed to send it again.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._requests: dict[str, Any] = {}
        send: Callable[[Any], Awaitable[None]] = llm.engine_core.add_request_async

        async def remember_and_send(request: Any) -> None:
            self._requests[request.request_id] = request
            if len(self._requests) > len(self._alive) + _PRUNE_AT:
                self._requests = {key: kept for key, kept in self._requests.items() if key in self._alive}
            await send(request)

        llm.engine_core.add_request_async = remember_and_send

    @property
    def _alive(self) -> dict[str, Any]:
        states: dict[str, Any] = self._llm.output_processor.request_states
        return states

    def unfinished(self) -> list[tuple[str, Any, Any]]:
        """`(request id, front-end state, engine-core request or None)`, oldest first."""
        return [(key, state, self._requests.get(key)) for key, state in self._alive.items()]

    def remember(self, request: Any) -> None:
        self._requests[request.request_id] = request


class Succession:
    """What a retired AsyncLLM's own API app still asks of it goes to its successor.

    Answers under way hold on to the engine that they began with: they abort through it when their client hangs up, and
    a request may be between the app's door and the engine when the switch begins. Replaced are the two methods that
    all of that goes through, so that no token passes through code of ours.
    """

    def __init__(self, llm: Any) -> None:
        self._successor: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Looked at even if nobody waits for it.
        self._successor.add_done_callback(lambda future: future.exception())

        async def add_request(*args: Any, **options: Any) -> Any:
            successor = await asyncio.shield(self._successor)
            return await successor.add_request(*args, **options)

        async def abort(request_id: Any, internal: bool = False) -> None:
            if self._successor.done() and self._successor.exception() is None:
                await self._successor.result().abort(request_id, internal=internal)
            else:
                llm_processor.abort_requests([request_id] if isinstance(request_id, str) else request_id, internal)

        llm_processor = llm.output_processor
        llm.add_request = add_request
        llm.abort = abort

    def pass_to(self, llm: Any) -> None:
        if not self._successor.done():
            self._successor.set_result(llm)

    def end(self, error: Exception) -> None:
        if not self._successor.done():
            self._successor.set_exception(error)


def tokens_so_far(state: Any) -> list[int]:
    return list(state.detokenizer.output_token_ids) if state.detokenizer is not None else []


def is_untouched(state: Any) -> bool:
    """Nothing has been generated yet: the request can simply be sent again."""
    return not tokens_so_far(state)


def was_nothing_sent(state: Any) -> bool:
    """The client has received nothing of it: it waits for the whole answer, or for its first token."""
    return is_untouched(state) or state.output_kind.name == "FINAL_ONLY"


def why_not(state: Any, request: Any) -> str | None:
    """Why a request in the middle of its output cannot go on in another engine core as if nothing had happened; None
    if it can. Each reason is state that lives in the core alone and would start anew, or be counted otherwise."""
    if request is None or request.pooling_params is not None or request.sampling_params is None:
        return "not a text generation"
    if request.resumable or state.streaming_input:
        return "its input is streamed"
    if request.prompt_token_ids is None or request.prompt_embeds is not None or request.mm_features:
        return "its prompt is not text alone"
    if request.lora_request is not None:
        return "it uses a LoRA adapter"
    if is_untouched(state):
        return None
    params = request.sampling_params
    if params.structured_outputs is not None:
        return "its output is constrained by a grammar"
    if params.presence_penalty or params.frequency_penalty:
        return "it counts repetitions in its output"
    if params.seed is not None and params.temperature > 0:
        return "it samples with a seed"
    if params.bad_words:
        return "it forbids words"
    if params.prompt_logprobs is not None:
        return "it wants log probabilities of its prompt"
    if getattr(params, "thinking_token_budget", None) is not None:
        return "it has a thinking budget"
    if params.extra_args:
        return "it has engine-specific arguments"
    return None


async def freeze(llm: Any) -> None:
    """Stop the scheduler with every request as it is, and let the outputs already made reach the front end."""
    await llm.pause_generation(mode="keep", clear_cache=False)
    queue = getattr(llm.engine_core, "outputs_queue", None)
    for _ in range(_SETTLE_ROUNDS):
        await asyncio.sleep(_SETTLE_S)
        if queue is None or queue.empty():
            return


async def thaw(llm: Any) -> None:
    await llm.resume_generation()


def take(ledger: Ledger, llm: Any, may_carry: Callable[[CarriedRequest], bool]) -> list[CarriedRequest]:
    """Take every request that can go on elsewhere out of a frozen engine's front end; the others stay.

    A request that cannot be carried is replayed from its beginning if its client has received nothing of it.
    """
    taken: list[CarriedRequest] = []
    for request_id, state, request in ledger.unfinished():
        reason = why_not(state, request)
        if reason is not None and (request is None or not _can_replay(state, request)):
            continue
        carried = CarriedRequest(request_id, state, request, is_replayed=reason is not None)
        if not may_carry(carried):
            continue
        _remove(llm.output_processor, request_id, state)
        taken.append(carried)
    return taken


def _can_replay(state: Any, request: Any) -> bool:
    return (
        was_nothing_sent(state)
        and request.sampling_params is not None
        and request.prompt_token_ids is not None
        and not request.resumable
        and not request.mm_features
        and request.prompt_embeds is None
        and request.lora_request is None
    )


async def adopt(ledger: Ledger, llm: Any, carried: list[CarriedRequest]) -> None:
    """Go on with `carried` in a fresh engine, in their former order."""
    llm._run_output_handler()
    for item in carried:
        state = _started_over(llm, item) if item.is_replayed else item.state
        _insert(llm.output_processor, item.request_id, state)
        request = item.request if item.is_replayed else continuation(item)
        await llm.engine_core.add_request_async(request)
        # Another switch continues from the original request, not from this continuation of it.
        ledger.remember(item.request)


def continuation(item: CarriedRequest) -> Any:
    """The engine-core request that goes on where the old core stopped: the tokens so far become prompt, and what
    counts output tokens is lowered by their number."""
    done = tokens_so_far(item.state)
    if not done:
        return item.request
    params = item.request.sampling_params.clone()
    if params.max_tokens is not None:
        params.max_tokens -= len(done)
    params.min_tokens = max(0, params.min_tokens - len(done))
    return msgspec.structs.replace(
        item.request, prompt_token_ids=[*item.request.prompt_token_ids, *done], sampling_params=params
    )


def end_with(llm: Any, error: Exception) -> int:
    """End every request left in a front end with `error`; returns how many there were."""
    states = list(llm.output_processor.request_states.values())
    for state in states:
        _remove(llm.output_processor, state.request_id, state)
        if state.queue is not None:
            state.queue.put(error)
    return len(states)


def fail(carried: list[CarriedRequest], error: Exception) -> None:
    """End carried requests that found no engine to go on in."""
    for item in carried:
        if item.state.queue is not None:
            item.state.queue.put(error)


def _started_over(llm: Any, item: CarriedRequest) -> Any:
    """Fresh front-end state on the same stream."""
    state = item.state
    return type(state).from_new_request(
        tokenizer=llm.output_processor.tokenizer,
        request=item.request,
        prompt=state.prompt,
        parent_req=state.parent_req,
        request_index=state.request_index,
        queue=state.queue,
        log_stats=llm.output_processor.log_stats,
        stream_interval=llm.output_processor.stream_interval,
    )


def _remove(processor: Any, request_id: str, state: Any) -> None:
    processor.request_states.pop(request_id, None)
    ids = processor.external_req_ids.get(state.external_req_id)
    if ids is not None and request_id in ids:
        ids.remove(request_id)
        if not ids:
            del processor.external_req_ids[state.external_req_id]
    if state.parent_req is not None:
        processor.parent_requests.pop(state.parent_req.request_id, None)
    processor.lora_states.request_finished(request_id, state.lora_name)


def _insert(processor: Any, request_id: str, state: Any) -> None:
    processor.request_states[request_id] = state
    processor.external_req_ids[state.external_req_id].append(request_id)
    if state.parent_req is not None:
        processor.parent_requests[state.parent_req.request_id] = state.parent_req
