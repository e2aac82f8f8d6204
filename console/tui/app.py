"""The Textual application: owns the state, the link task and the clock; draws the visible screen once a second.

The state has one writer, `_received`. A message redraws at once when it changes what kind of page is on screen;
otherwise the newest snapshot does, and the tick only when nothing else has for a second (ages must go on counting
when the host is silent).
"""

from __future__ import annotations

import gc
import select
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from textual.app import App
from textual.binding import BindingType
from textual.events import Key
from textual.worker import WorkerFailed

from console import format as fmt
from console.call_errors import CallFailed, ConnectionLost
from console.connect import Target
from console.consequence import METHOD_STOP, consequence, deadline_s
from console.frame import Moment
from console.link import Link
from console.model import (
    Connected,
    Disconnected,
    EventArrived,
    Freeze,
    Message,
    SnapshotArrived,
    State,
    Thaw,
    reduce,
)
from console.sentences import in_sentences
from console.tui.keys import Action, action_for, bindings
from console.tui.offers import answer, quitting, refusal
from console.tui.pages import PAGES
from console.tui.screens.help import HelpScreen
from console.tui.screens.page import Page
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.methods import METHODS, Applied, Risk

if TYPE_CHECKING:
    from console.tui.screens.confirm import ConfirmScreen

TICK_S = 1.0

HINT_S = 6.0
"""How long a hint takes the footer's place: long enough to read a sentence, short enough to get the keys back."""

OUTCOME_S = 60.0
"""How long the outcome of an action stays: whoever started it may be looking elsewhere. Any key clears it."""

REASON = "from the console"
"""What the audit log is told of changes made on a screen."""

R = TypeVar("R")


class Source(Protocol):
    """What feeds the app: `Link`, or a script in tests."""

    async def run(self) -> None: ...

    async def call(self, method: str, type_: type[R], params: object, deadline_s: float) -> R: ...


class ConsoleApp(App[int]):
    CSS_PATH = "theme.tcss"
    TITLE = "vllm-console"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = bindings()
    MODES: ClassVar = PAGES
    DEFAULT_MODE = "overview"

    def __init__(
        self,
        target: Target,
        source: Callable[[Target, Callable[[Message], None]], Source] = Link,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        quit_stops_host: bool = False,
    ) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self._clock = clock
        self._wall = wall
        self._source = source(target, self._received)
        self._drawn_at = 0.0
        self._notice = ""
        self._notice_until = 0.0
        self._acting: str | None = None
        self.state = State(target=str(target), quit_stops_host=quit_stops_host)

    def on_mount(self) -> None:
        self.run_worker(self._source.run(), name="link", exit_on_error=True)
        self.set_interval(TICK_S, self._tick)
        self.call_after_refresh(self._settle)

    def _settle(self) -> None:
        """What was imported and built lives as long as the process: keep the collector from walking it every time."""
        gc.collect()
        gc.freeze()

    def _fatal_error(self) -> None:
        """Textual's hook for an unhandled exception: leave the terminal clean; `terminal` says what happened.

        Overridden because the default prints a traceback with the values of local variables to the operator.
        """
        if self.is_headless:
            super()._fatal_error()
        else:
            self._close_messages_no_wait()

    @property
    def broke_by(self) -> BaseException | None:
        """The unhandled exception that ended the app, if one did."""
        error = self._exception
        return error.error if isinstance(error, WorkerFailed) else error

    def _received(self, message: Message) -> None:
        self.state = reduce(self.state, message)
        match message:
            case SnapshotArrived() | Connected() | Disconnected() | EventArrived():
                self.draw()

    def _tick(self) -> None:
        if not self.is_headless and _terminal_is_gone():
            self.exit(0)
            return
        if self._clock() - self._drawn_at > TICK_S * 0.9:
            self.draw()

    def draw(self) -> None:
        """Bring the visible screen up to date."""
        self._drawn_at = now = self._clock()
        if self._notice and now > self._notice_until:
            self._notice = ""
        page = self.screen
        if isinstance(page, Page):
            page.show(self.state, self.moment(), self._footer_notice())
        elif hasattr(page, "follow"):
            page.follow(self.state)

    def moment(self) -> Moment:
        return Moment(self._clock(), self._wall())

    def _footer_notice(self) -> str:
        return self._notice or (f"{self._acting}: waiting for the outcome …" if self._acting else "")

    def notice(self, text: str, seconds: float) -> None:
        self._notice = text
        self._notice_until = self._clock() + seconds
        self.draw()

    def on_key(self, event: Key) -> None:
        """Whoever presses a key has read the notice; one that does nothing says why."""
        self._notice = ""
        page = self.screen
        # Where something has the focus, it is typed into: keys that move the cursor there do something.
        if isinstance(page, Page) and self.focused is None:
            shown = event.character if event.character and event.is_printable and event.key != "space" else event.key
            if said := answer(event.key, fmt.clean(shown), page.place, self.state):
                self.notice(said, HINT_S)

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "act":
            return refusal(action_for(str(parameters[0])), self.state) is None and self._acting is None
        if action in {"help", "screen", "freeze", "quit", "leave"}:
            return isinstance(self.screen, Page)
        return True

    def action_screen(self, name: str) -> None:
        self.switch_mode(name)
        self.call_after_refresh(self.draw)

    def propose_dial(self, dial: str, value: int, reason: str, for_s: float | None) -> None:
        """Go to the dials with a change to be agreed to."""
        from console.tui.screens.dials import DialsScreen

        self.action_screen("dials")
        page = self.screen
        assert isinstance(page, DialsScreen)
        page.propose(dial, value, reason, for_s)

    def action_leave(self) -> None:
        self.action_screen("overview")

    def action_help(self) -> None:
        page = self.screen
        if isinstance(page, Page):
            self.push_screen(HelpScreen(page.place, self.state), lambda _: self._redraw_soon())

    def _redraw_soon(self) -> None:
        self.call_after_refresh(self.draw)

    def action_freeze(self) -> None:
        self._received(Thaw() if self.state.frozen is not None else Freeze(self._clock(), self._wall()))
        self.draw()

    def action_hint_quit(self) -> None:
        self.notice(f"Nothing was ended. Press q to {quitting(self.state)}.", HINT_S)

    def action_act(self, method: str) -> None:
        """Ask, then call once. The dialog's widgets are imported only now: most sessions never need them."""
        from console.tui.screens.confirm import ConfirmScreen, Question

        action = action_for(method)
        host = fmt.clean(self.state.snapshot.host.name) if self.state.snapshot is not None else ""
        question = Question(
            action,
            asked=f"{action.label} on {host}",
            consequence=lambda state: consequence(method, state.snapshot),
            go=action.label.capitalize(),
            wanted_name=host if method == METHOD_STOP else "",
        )
        self.ask(ConfirmScreen(question, self.state), lambda: self._act(action), name=method)

    def ask(self, dialog: ConfirmScreen, agreed: Callable[[], Coroutine[None, None, None]], *, name: str) -> None:
        """Run `agreed` once if the operator agrees."""

        def answered(said: bool | None) -> None:
            if said:
                self.run_worker(agreed(), name=name, exit_on_error=False)
            self._redraw_soon()

        self.push_screen(dialog, answered)

    async def _act(self, action: Action) -> None:
        method = action.method
        assert method is not None
        snapshot = self.state.snapshot
        params = METHODS[method].params(
            reason=REASON,
            idempotency_key=uuid.uuid4().hex,
            expected_state_version=snapshot.state_version if snapshot is not None else None,
        )
        self._acting = action.label
        try:
            applied = await self.attempt(action.label, method, Applied, params, deadline_s(method, snapshot))
        finally:
            self._acting = None
        self.notice(applied if isinstance(applied, str) else fmt.clean(f"{action.label}: {applied.text}"), OUTCOME_S)

    async def attempt(self, label: str, method: str, type_: type[R], params: object, deadline_s: float) -> R | str:
        """One call: its result, or in words what became of it. A lost answer is not asked for again."""
        try:
            return await self._source.call(method, type_, params, deadline_s)
        except ConnectionLost as error:
            # A call that only reads has no outcome that somebody would have to know.
            is_change = METHODS[method].risk is not Risk.READ
            unknown = " The outcome is unknown; it is not sent again." if error.was_sent and is_change else ""
            return fmt.clean(f"{label}: {error.fact}{unknown}")
        except OperatorError as error:
            fact = error.error.message if isinstance(error, CallFailed) else error.fact
            return fmt.clean(f"{label}: {in_sentences(fact, error.remedy)}")


def _terminal_is_gone() -> bool:
    """The other end of the terminal was closed. Reading from it returns at once and for ever, so a program that does
    not look spins at 100 % CPU until somebody finds it."""
    poll = select.poll()
    try:
        poll.register(0, select.POLLHUP)
        return any(flags & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, flags in poll.poll(0))
    except OSError:
        return True
