"""The faults of one file, told together: who mends a file wants to know all that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_host.protocol.errors import OperatorError


class Faults:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[OperatorError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Keeps the fault that is raised inside for later."""
        try:
            yield
        except OperatorError as error:
            self._found.append(error)

    def tell(self) -> None:
        """Raises one `OperatorError` with everything that was found; several are numbered, and so are their remedies.

        Nothing was found: returns.
        """
        if len(self._found) <= 1:
            for error in self._found:
                raise error
            return
        lead = f"{self._path}: "
        facts = [f"({i}) {error.fact.removeprefix(lead)}" for i, error in enumerate(self._found, 1)]
        remedies = [f"({i}) {error.remedy}" for i, error in enumerate(self._found, 1) if error.remedy]
        raise OperatorError(lead + "; ".join(facts), "\n  ".join(remedies)) from None
