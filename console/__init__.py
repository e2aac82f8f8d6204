"""vllm-console: the terminal operations console that attaches to an engine host."""
