"""What several files of these tests begin with."""

from __future__ import annotations

import pytest

from .desk import Desk, profile


@pytest.fixture
async def desk() -> Desk:
    """Made on an event loop, as settings end by its timers."""
    return Desk(profile(max_inflight=64))
