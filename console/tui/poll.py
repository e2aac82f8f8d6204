"""Asks the host one question once a second while the page that needs the answer is on screen.

Never two at once: over a slow link what falls due while an answer is on its way is left out, so that answers get
fewer and not older. Nothing is asked, and nothing that still comes is taken, while the page is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from console.client import READ_DEADLINE_S
from console.model import Link
from console.polled import Polled

if TYPE_CHECKING:
    from console.tui.screens.page import Page

EVERY_S = 0.9
"""A little less than the second between two looks, so that none is missed by a hair."""

T = TypeVar("T")


class Poll(Generic[T]):
    def __init__(
        self,
        page: Page,
        label: str,
        method: str,
        type_: type[T],
        took: Callable[[T], None] = lambda answer: None,
        forgot: Callable[[], None] = lambda: None,
    ) -> None:
        """`label`: what is asked for, in a failure's words. `took` is told every answer; `polled` holds the newest.
        `forgot` is told when there is another host: what the former one answered is no more."""
        self.polled: Polled[T] = Polled()
        self._page, self._label, self._method, self._type = page, label, method, type_
        self._took, self._forgot = took, forgot
        self._params: object = None
        self._asked_at = float("-inf")
        self._boot_id = ""
        self._is_asking = False

    def look(self, params: object) -> None:
        """Ask if it is time to, at once when the question is another one."""
        console = self._page.console
        state, now = console.state, console.moment().now
        if state.hello is not None and state.hello.boot_id != self._boot_id:
            self._boot_id = state.hello.boot_id
            self.polled = Polled()
            self._forgot()
        is_due = now - self._asked_at >= EVERY_S or params != self._params
        if self._is_asking or not is_due or state.link is not Link.UP or state.frozen is not None:
            return
        self._is_asking, self._asked_at, self._params = True, now, params
        self._page.run_worker(self._ask(params, self._boot_id))

    def put(self, answer: T) -> None:
        """A newer answer, that came with something else."""
        if self._page.console.state.frozen is not None:
            return
        self.polled = Polled(answer, self._page.console.moment().now)

    async def _ask(self, params: object, boot_id: str) -> None:
        console = self._page.console
        try:
            found = await console.attempt(self._label, self._method, self._type, params, READ_DEADLINE_S)
        finally:
            self._is_asking = False
        if console.state.frozen is not None or boot_id != self._boot_id:
            return
        if isinstance(found, str):
            self.polled = replace(self.polled, failure=found)
        else:
            self.polled = Polled(found, console.moment().now)
            self._took(found)
        if self._page.is_current:
            console.draw()
