"""Clients that people use, unmodified, against a real server over real sockets."""
