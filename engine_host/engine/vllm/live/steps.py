"""What is noted at every scheduler step, on the engine core's main thread: a few microseconds of it.

Everything that can wait is left to the publisher's thread; here only references are kept and lengths taken, by calls
that run in C.
"""

from __future__ import annotations

import time
from typing import Any

from engine_host.engine.vllm.live.tally import Admitted, Counted, Tally, Verified

_EXACT_STEPS = 8
"""After a reset of running requests, steps that began before it are still under way."""


class Steps:
    def __init__(self, scheduler: Any, tally: Tally) -> None:
        self._scheduler, self._tally = scheduler, tally
        self._note = tally.note
        self.version = 0
        """Odd while the scheduler changes its blocks and requests: a look in between would see half of it."""
        self._ended: float | None = None
        """When the step before ended; None after a pause."""
        self._was_decode = False
        self._exact_steps = 0
        self._is_watching = False
        self._verified: Verified | None = None
        self._is_always_exact = getattr(scheduler, "connector", None) is not None

    def pause(self) -> None:
        """There is nothing to do: the next step does not follow this one."""
        self._ended = None

    def leave(self) -> None:
        """Nothing of ours stays behind in the scheduler."""
        vars(self._scheduler).pop("make_spec_decoding_stats", None)

    def has_reset(self) -> None:
        self._exact_steps = _EXACT_STEPS

    def after_schedule(self, output: Any) -> None:
        if output.scheduled_new_reqs:
            self._note(Admitted(output.scheduled_new_reqs, time.time()))
        self.version += 1

    def before_update(self, step: Any, result: Any) -> None:
        """Before vLLM cuts off what was generated beyond a stop."""
        self.version += 1
        drafts = step.scheduled_spec_decode_tokens
        if not drafts:
            self._verified = None
        elif self._is_always_exact or self._exact_steps or self._tally.disagrees:
            self._verified = None
            self._exact_steps = max(0, self._exact_steps - 1)
            self._watch_vllm_count()
        else:
            self._verified = Verified(
                list(drafts),
                step.num_scheduled_tokens,
                list(map(len, result.sampled_token_ids)),
                result.req_id_to_index,
                step.num_invalid_spec_tokens,
            )
            self._note(self._verified)

    def after_update(self, step: Any, outputs: Any) -> None:
        drafted = accepted = 0
        if outputs and (statistics := next(iter(outputs.values())).scheduler_stats) is not None:
            drafting = statistics.spec_decoding_stats
            if drafting is not None:
                drafted, accepted = drafting.num_draft_tokens, drafting.num_accepted_tokens
        if self._verified is not None:
            if self._scheduler.log_stats:
                self._verified.by_vllm = drafted, accepted
        elif self._is_watching:
            self._is_watching = False
            self.leave()
        self._ran(step, drafted, accepted)
        self.version += 1

    def _ran(self, step: Any, drafted: int, accepted: int) -> None:
        tokens = step.total_num_scheduled_tokens
        if not tokens:
            self._ended = None
            return
        now, before = time.monotonic(), self._ended
        requests = len(step.num_scheduled_tokens)
        struck = step.num_invalid_spec_tokens
        is_decode = tokens == requests + drafted + (sum(struck.values()) if struck else 0)
        if before is not None:
            k = step.num_spec_tokens_to_schedule
            is_pure = is_decode and self._was_decode
            self._note((now, now - before, requests, tokens, drafted, accepted, k, is_pure))
            self._tally.check()
        self._ended, self._was_decode = now, is_decode

    def _watch_vllm_count(self) -> None:
        """For one step, every call with which vLLM counts a request's draft goes through here: exact, but at 256
        requests slower than all the rest."""
        scheduler = self._scheduler
        counted: list[tuple[str, int, int]] = []
        count = type(scheduler).make_spec_decoding_stats

        def watched(
            sofar: Any,
            num_draft_tokens: int,
            num_accepted_tokens: int,
            num_invalid_spec_tokens: Any,
            request_id: str,
        ) -> Any:
            struck = num_invalid_spec_tokens.get(request_id, 0) if num_invalid_spec_tokens else 0
            counted.append((request_id, num_draft_tokens - struck, num_accepted_tokens))
            return count(scheduler, sofar, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens, request_id)

        self._is_watching = True
        self._tally.note(Counted(counted))
        scheduler.make_spec_decoding_stats = watched
