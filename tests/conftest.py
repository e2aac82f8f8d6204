"""What holds for every test."""

from hypothesis import settings

# An example's time is the machine's affair: a test that touches a disk would fail whenever another job runs beside it.
settings.register_profile("this", deadline=None)
settings.load_profile("this")
