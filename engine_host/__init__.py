"""The engine host: runs vLLM on the GPU node and exposes a control socket."""

__version__ = "0.1.0"
