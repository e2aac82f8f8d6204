"""What holds for every test."""

import signal

from hypothesis import settings

# An example's time is the machine's affair: a test that touches a disk would fail whenever another job runs beside it.
settings.register_profile("this", deadline=None)
settings.load_profile("this")

# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
