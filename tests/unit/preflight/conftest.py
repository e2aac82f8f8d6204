"""The fixtures of a whole preflight (`whole`)."""

from tests.unit.preflight.whole import machine, profile

__all__ = ["machine", "profile"]
