"""The HTTP side: one ASGI entry in front of whichever engine serves."""
