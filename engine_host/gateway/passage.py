"""The place of one admitted request at the gate, and how the request is to be answered."""

from __future__ import annotations

from collections.abc import Callable

from engine_host.gateway.asked import Asked
from engine_host.gateway.held_request import HeldRequest


class Passage:
    """To be left when its response is done."""

    __slots__ = ("_left", "_taken_for", "asked", "came", "held", "opening")

    def __init__(self, left: Callable[[Asked], None] | None, asked: Asked | None, held: HeldRequest) -> None:
        """`left` gives the place back; None where none was taken."""
        self._left = left
        self._taken_for = asked
        self.asked = asked
        """As it is to be answered."""
        self.held = held
        self.came: Asked | None = None
        """What was asked before it was prepared; None: it needs no preparation, or no other one any more."""
        self.opening = 0
        """The opening of the gate that it was prepared for."""

    @property
    def class_name(self) -> str | None:
        return None if self._taken_for is None else self._taken_for.class_name

    def leave(self) -> None:
        self.held.drop()
        left, self._left = self._left, None
        if left is not None and self._taken_for is not None:
            left(self._taken_for)
