"""The HTTP server: an OpenAI-compatible API in front of the engine.

The API process runs one event loop and never imports torch; every model lives in a worker process of its own.
"""
