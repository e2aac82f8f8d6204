"""An extension of vLLM's workers, as a profile may name one."""

from __future__ import annotations


class Nothing:
    pass
