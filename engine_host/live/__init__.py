"""What the scheduler inside the engine core tells the host, and what the host tells it, through shared memory.

Nothing here imports vLLM: `engine_host.engine.vllm.live` writes what is read here, and reads what is written here.
"""
