"""The engine behind one interface: its port, the vLLM adapter, and the lifecycle that owns it."""
