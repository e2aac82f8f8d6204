"""The contract between host and console: frames, envelope, methods with their risk, snapshot and event types.

Nothing in this package may import vLLM, torch, Textual or the rest of the host: the console is installed on laptops
that have none of them.
"""

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""Protocol versions this release speaks; both sides announce their range and use the highest they share."""
