"""The scripting commands, one module each; they import no terminal toolkit."""
