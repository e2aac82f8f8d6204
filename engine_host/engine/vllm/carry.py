"""Carrying requests from one vLLM engine to the next, below the API and above the engine core.

vLLM splits a request in two: the front end (in this process) holds its stream, its detokeniser, its stop strings, its
log probabilities and its counts; the engine core (a child process) holds its KV blocks and samples its tokens. Only
the core goes away in a switch. So the front-end half is kept as it stands and moved into the new engine's front end,
and the core gets the request anew with the tokens so far behind its prompt. The client's stream pauses and goes on:
no text is cut or spliced, no token is sent twice, usage counts the same prompt, and a character of several bytes that
straddles the switch comes out whole.

Which requests those are, `carriable` says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from typing import Any

import msgspec

from engine_host.engine.port import Bound, Handling
from engine_host.engine.vllm.carriable import CarriedRequest, fate, tokens_so_far
from engine_host.engine.vllm.kept_wait import keep_wait
from engine_host.engine.vllm.ledger import Ledger

logger = logging.getLogger(__name__)

_FREEZE_S = 30.0
"""What a scheduler gets to stop: the step under way has to end, and the longest prefills take seconds."""
_SETTLE_S = 0.02
"""Between the last output in the queue and the end of its processing by vLLM's output loop."""
_SETTLE_ROUNDS = 50
"""How often that is waited for at most."""


def handling(ledger: Ledger, bound: Bound) -> Handling:
    """What a switch would do with the requests in flight now."""
    fates = Counter(fate(state, request, bound) for _, state, request in ledger.unfinished())
    return Handling(carry=fates["carry"], drain=fates["drain"], replay=fates["replay"])


async def freeze(llm: Any) -> None:
    """Stop the scheduler with every request as it is, and let the outputs already made reach the front end.

    An engine core that hangs or has just died does not answer, and vLLM would wait for it for ever. Then the front end
    is complete as it stands: of a request taken out of it, a late output is dropped.
    """
    try:
        async with asyncio.timeout(_FREEZE_S):
            await llm.pause_generation(mode="keep", clear_cache=False)
    except Exception as error:
        logger.warning("the engine core did not stop its scheduler: %r", error)
        return
    queue = getattr(llm.engine_core, "outputs_queue", None)
    for _ in range(_SETTLE_ROUNDS):
        await asyncio.sleep(_SETTLE_S)
        if queue is None or queue.empty():
            return


def take(ledger: Ledger, llm: Any, bound: Bound, given_up: Collection[str]) -> list[CarriedRequest]:
    """Take every request that can go on elsewhere out of a frozen engine's front end; the others stay."""
    taken: list[CarriedRequest] = []
    for request_id, state, request in ledger.unfinished():
        if (becomes := fate(state, request, bound)) == "drain":
            continue
        remove(llm.output_processor, request_id, state)
        taken.append(CarriedRequest(request_id, state, request, becomes == "replay", given_up))
    return taken


async def adopt(ledger: Ledger, llm: Any, carried: list[CarriedRequest]) -> None:
    """Go on with `carried` in a fresh engine, in their former order. When that fails, with whatever vLLM raises, none
    of them is left in it."""
    llm._run_output_handler()
    states = [(item, _started_over(llm, item) if item.is_replayed else item.state) for item in carried]
    try:
        for item, state in states:
            if not item.is_replayed:
                keep_wait(state.stats)
            _insert(llm.output_processor, item.request_id, state)
            await llm.engine_core.add_request_async(item.request if item.is_replayed else continuation(item))
            # Another switch continues from the original request, not from this continuation of it.
            ledger.remember(item.request)
        if late := [item.request_id for item in carried if item.is_given_up]:
            await llm.abort(late, internal=True)
    except BaseException:
        for item, state in states:
            remove(llm.output_processor, item.request_id, state)
        raise


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
        remove(llm.output_processor, state.request_id, state)
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


def remove(processor: Any, request_id: str, state: Any) -> None:
    """Take a request out of a front end. Of an output that still comes from its core, vLLM takes no notice."""
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
