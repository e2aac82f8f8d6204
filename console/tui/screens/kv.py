"""The KV screen: asks for the block map in as many cells as its terminal has room for."""

from __future__ import annotations

from console.frame import Moment
from console.kv_page import cells_wanted, kv_page
from console.lines import Line
from console.model import State
from console.tui.poll import Poll
from console.tui.screens.page import Page
from engine_host.protocol.methods import KvMap, KvMapParams


class KvScreen(Page):
    NAME = "kv"

    def __init__(self) -> None:
        super().__init__()
        self.map = Poll(self, "block map", "kv.map", KvMap)

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return kv_page(state, self.map.polled, moment, width, height)

    def show(self, state: State, moment: Moment, notice: str) -> None:
        width, height = self.size
        wanted = cells_wanted(state, width, height - 1)
        if wanted is not None:
            self.map.look(KvMapParams(cells=wanted))
        super().show(state, moment, notice)
