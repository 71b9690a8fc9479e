"""A running server as a source: several requests at a time over plain HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from typing import Any, Final

from server.body import JsonObject
from server.evaluation.answer import Reply, read_cost, read_settings
from server.evaluation.cell import PLACE_SETTINGS
from server.terminal.remote import RemoteModel
from server.terminal.source import BusyError, SourceError

BUSY_SECONDS: Final = 120.0  # for which a request is asked again
RETRY_SECONDS: Final = 0.5


class RemoteSource:
    """A server behind a URL, which decides itself what shares a forward."""

    def __init__(self, remote: RemoteModel, url: str, concurrency: int) -> None:
        self._remote = remote
        self._concurrency = concurrency
        self._is_closing = threading.Event()
        self.model = remote.model
        left = _left_to_server(remote.card())
        self.facts: JsonObject = {"url": url, "model": remote.model, "server": left, "concurrency": concurrency}

    def replies(self, path: str, bodies: Mapping[str, JsonObject]) -> Generator[tuple[str, Reply], None, None]:
        """See Source. Answers that are under way when it is closed are left at their next chunk."""
        self._is_closing.clear()
        with ThreadPoolExecutor(self._concurrency) as threads:
            futures: dict[Future[Reply], str] = {
                threads.submit(self._patiently, path, body): name for name, body in bodies.items()
            }
            try:
                for future in as_completed(futures):
                    try:
                        yield futures[future], future.result()
                    except SourceError as error:
                        raise SourceError(f"{futures[future]}: {error}") from error
            finally:
                self._is_closing.set()
                threads.shutdown(cancel_futures=True)

    def _patiently(self, path: str, body: JsonObject) -> Reply:
        """A reply from a server that may be busy for a while, with others or with starting a worker anew."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return self._reply(path, body)
            except BusyError:
                if time.monotonic() > deadline or self._is_closing.wait(RETRY_SECONDS):
                    raise

    def _reply(self, path: str, body: JsonObject) -> Reply:
        texts: list[str] = []
        token_ids: list[int] = []
        reason = ""
        psd: JsonObject = {}
        num_tokens = 0
        options = {"stream": True, "stream_options": {"include_usage": True}}
        try:
            with closing(self._remote.stream(path, body | options)) as chunks:
                for chunk in chunks:
                    if self._is_closing.is_set():
                        raise SourceError("stopped")
                    fields: Any = chunk
                    if fields.get("usage"):
                        num_tokens = fields["usage"]["completion_tokens"]
                    if "forwards" in (fields.get("psd") or {}):
                        psd = fields["psd"]
                    for choice in fields["choices"]:
                        texts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
                        token_ids += choice.get("token_ids") or []
                        reason = choice.get("finish_reason") or reason
            return Reply("".join(texts), tuple(token_ids), reason, read_cost(psd, num_tokens), read_settings(psd))
        except ValueError as error:
            raise SourceError(str(error)) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"the server sent something that is no chunk of an answer: {error!r}") from None


def _left_to_server(card: JsonObject) -> JsonObject:
    """What answers depend on that no request says: the server's own values, as far as it tells them."""
    psd = card.get("psd")
    decoder = psd.get("decoder") if isinstance(psd, dict) else None
    own = {name: decoder.get(name) for name in sorted(PLACE_SETTINGS)} if isinstance(decoder, dict) else {}
    every = {"max_model_len": card.get("max_model_len")} | own
    return {name: value for name, value in every.items() if value is not None}
