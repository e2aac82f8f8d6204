"""vLLM behind the engine port: the one package that knows vLLM's unstable insides.

Written against vLLM 0.26 to 0.33. What moved between them is looked up in one place each (`releases`). Statistics
that a release reports otherwise leave the figures unknown; they never end a request.

Importing any room of it loads no vLLM, which takes seconds: every import of vLLM stands in the function that needs it.
"""
