"""What is wrapped around vLLM's scheduler: calls it unchanged, and lets our part look before and after.

To be mixed in before vLLM's own class, of whatever release. Arguments are passed on as they come: releases differ in
them. Nothing that our part raises gets past here.
"""

from __future__ import annotations

from typing import Any

from engine_host.engine.vllm.live.inside import Inside, enter


class Steered:
    _engine_host: Inside | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._engine_host = enter(self)

    def schedule(self, *args: Any, **options: Any) -> Any:
        ours = self._engine_host
        if ours is not None:
            try:
                ours.before_schedule()
            except Exception as error:
                self._go_on_without(ours, error)
                ours = None
        output = super().schedule(*args, **options)  # type: ignore[misc]
        if ours is not None:
            try:
                ours.after_schedule(output)
            except Exception as error:
                self._go_on_without(ours, error)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        ours = self._engine_host
        if ours is not None:
            try:
                ours.before_update(scheduler_output, model_runner_output)
            except Exception as error:
                self._go_on_without(ours, error)
                ours = None
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if ours is not None:
            try:
                ours.after_update(scheduler_output, outputs)
            except Exception as error:
                self._go_on_without(ours, error)
        return outputs

    def finish_requests(self, *args: Any, **options: Any) -> Any:
        """Also called while a step is updated."""
        ours = self._engine_host
        is_outermost = ours is not None and ours.begin()
        finished = super().finish_requests(*args, **options)  # type: ignore[misc]
        if ours is not None and is_outermost:
            ours.end()
        return finished

    def reset_prefix_cache(self, *args: Any, **options: Any) -> Any:
        ours = self._engine_host
        is_outermost = ours is not None and ours.begin()
        outcome = super().reset_prefix_cache(*args, **options)  # type: ignore[misc]
        if ours is not None and is_outermost:
            ours.has_reset()
            ours.end()
        return outcome

    def has_requests(self) -> bool:
        """Asked between steps, and by an idle engine core after everything that its clients tell it."""
        found: bool = super().has_requests()  # type: ignore[misc]
        ours = self._engine_host
        if ours is not None and not found:
            try:
                ours.rests()
            except Exception as error:
                self._go_on_without(ours, error)
        return found

    def shutdown(self) -> None:
        if self._engine_host is not None:
            self._engine_host.stop()
        super().shutdown()  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **options: Any) -> Any:
        ours = self._engine_host
        if ours is not None:
            try:
                ours.ends(request.request_id)
            except Exception as error:
                self._go_on_without(ours, error)
        return super()._free_request(request, *args, **options)  # type: ignore[misc]

    def _go_on_without(self, ours: Inside, error: Exception) -> None:
        self._engine_host = None
        ours.turn_off(error)
