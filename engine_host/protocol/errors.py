"""What an operator is told when something cannot be done.

Every message that reaches a person is a fact and a remedy: what was found, what was expected, what to run next. A
traceback is for a developer and goes to the log, never to the terminal.
"""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INVALID = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_TIMED_OUT = 5


class OperatorError(Exception):
    """A failure told to the operator; `exit_code` is one of the EXIT_ values of the command-line contract."""

    def __init__(self, fact: str, remedy: str = "", *, exit_code: int = EXIT_INVALID) -> None:
        super().__init__(fact)
        self.fact = fact
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.fact}\n  {self.remedy}" if self.remedy else self.fact
