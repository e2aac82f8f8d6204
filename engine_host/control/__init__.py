"""The control socket: server, sessions, roles, actions, audit."""
