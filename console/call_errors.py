"""What can become of a call to the host but its answer: errors, each with the exit code that a script sees.

They differ in what is known of the call: it was never sent, it may have been carried out, or the host refused it.
"""

from __future__ import annotations

from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.errors import (
    EXIT_FAILED,
    EXIT_INVALID,
    EXIT_REFUSED,
    EXIT_TIMED_OUT,
    EXIT_UNREACHABLE,
    OperatorError,
)

_EXIT_BY_CODE: dict[int, int] = {
    ErrorCode.ROLE: EXIT_REFUSED,
    ErrorCode.CONFLICT: EXIT_REFUSED,
    ErrorCode.AUDIT: EXIT_REFUSED,
    ErrorCode.BUSY: EXIT_REFUSED,
    ErrorCode.INVALID_PARAMS: EXIT_INVALID,
    ErrorCode.INVALID_REQUEST: EXIT_INVALID,
    ErrorCode.UNKNOWN_METHOD: EXIT_INVALID,
    ErrorCode.FRAME_TOO_LARGE: EXIT_INVALID,
    ErrorCode.UNKNOWN_OUTCOME: EXIT_TIMED_OUT,
}


class CannotConnect(OperatorError):
    def __init__(self, fact: str, remedy: str) -> None:
        super().__init__(fact, remedy, exit_code=EXIT_UNREACHABLE)


class ConnectionLost(OperatorError):
    """The connection ended; a call that was under way may or may not have been carried out."""

    def __init__(self, reason: str, *, was_sent: bool = True) -> None:
        super().__init__(
            f"the connection to the host was lost: {reason}."
            if was_sent
            else f"nothing was sent: there is no connection to the host ({reason}).",
            "See whether the host still runs: vllm-console status",
            exit_code=EXIT_UNREACHABLE,
        )
        self.reason = reason
        self.was_sent = was_sent
        """False only when it is certain that the host never saw the call."""


class NoAnswer(OperatorError):
    """The deadline passed; the call may still be carried out."""

    def __init__(self, method: str, deadline_s: float) -> None:
        super().__init__(
            f"no answer to {method} within {deadline_s:g} s; its outcome is unknown.",
            "See where the host stands: vllm-console status; vllm-console events",
            exit_code=EXIT_TIMED_OUT,
        )


class CallFailed(OperatorError):
    """The host answered with an error."""

    def __init__(self, method: str, error: RpcError) -> None:
        remedy = error.data.get("remedy")
        super().__init__(
            f"{method}: {error.message}",
            remedy if isinstance(remedy, str) and remedy else "See what the host says: vllm-console events",
            exit_code=_EXIT_BY_CODE.get(error.code, EXIT_FAILED),
        )
        self.error = error
