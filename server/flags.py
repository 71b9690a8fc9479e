"""The table of command-line flags: name, parser, default, help. `settings` turns it into one frozen value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from psd_core.config import (
    ACCEPTANCE_NAMES,
    CACHE_NAMES,
    INCREMENT_NAMES,
    POLICY_NAMES,
    QUANTIZATION_NAMES,
    DecoderConfig,
    EngineConfig,
)
from server.logs import LOG_FORMATS
from server.tuning import DEFAULTS

Parser = Callable[[str], object]

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting. `parse` turns text into a value and raises ValueError with the limit in its message."""

    name: str
    parse: Parser
    default: object
    help: str
    repeats: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether the bare flag, without a value, says true."""
        return self.parse is switch

    @property
    def option(self) -> str:
        """As typed on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Name of the environment variable that mirrors the flag."""
        return "PSD_" + self.name.upper()


def text(value: str) -> str:
    """Any text but the empty one."""
    if not value:
        raise ValueError("must not be empty")
    return value


def secret(value: str) -> str:
    """Printable ASCII without spaces, as it can stand in an Authorization header."""
    if not value or not all("!" <= char <= "~" for char in value):
        raise ValueError("must be printable ASCII without spaces, and not empty")
    return value


def web_address(value: str) -> str:
    """A URL of http or https."""
    if not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return value


def whole(low: int, high: int) -> Parser:
    """An integer in [low, high]."""

    def parse(value: str) -> int:
        try:
            parsed = int(value)
        except ValueError:
            raise ValueError(f"must be an integer between {low} and {high}") from None
        if not low <= parsed <= high:
            raise ValueError(f"must be between {low} and {high}")
        return parsed

    return parse


def number(low: float, high: float) -> Parser:
    """A finite number in [low, high]."""

    def parse(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            parsed = math.nan
        if not low <= parsed <= high:
            raise ValueError(f"must be a number between {low:g} and {high:g}")
        return parsed

    return parse


def choice(*choices: str) -> Parser:
    """One of a few words."""

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return parse


def device(value: str) -> str:
    """auto, cpu, cuda or cuda:N; whether it is there is known only later."""
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is None:
        raise ValueError("must be auto, cpu, cuda or cuda:N")
    return value


def switch(value: str) -> bool:
    """Yes or no."""
    known: Mapping[str, bool] = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if value.lower() not in known:
        raise ValueError("must be true or false")
    return known[value.lower()]


def whole_or(words: tuple[str, ...], low: int, high: int) -> Parser:
    """An integer in [low, high], or one of the words."""
    parse_whole = whole(low, high)

    def parse(value: str) -> int | str:
        if value in words:
            return value
        try:
            return cast(int, parse_whole(value))
        except ValueError as error:
            raise ValueError(f"{error}, or the word {' or '.join(words)}") from None

    return parse


_DECODER: Final = DecoderConfig()
_ENGINE: Final = EngineConfig()

FLAGS: Final[tuple[Flag, ...]] = (
    Flag("model", text, None, "checkpoint folder or hub name; absent: the built-in demo model"),
    Flag("served_model_name", text, (), "name clients use; the first one is reported", repeats=True),
    Flag("tokenizer", text, None, "folder or hub name of the tokenizer; absent: the checkpoint's own"),
    Flag("chat_template", text, None, "file with a chat template; absent: the tokenizer's own"),
    Flag("dtype", choice(*DTYPES), "auto", "weights' type; auto: bfloat16 on a GPU, what measures faster on a CPU"),
    Flag("quantization", choice(*QUANTIZATION_NAMES), "none", "int8: matrices of the layers are kept in 8 bits"),
    Flag("device", device, "auto", "auto, cpu, cuda or cuda:N"),
    Flag(
        "threads",
        whole(0, 4096),
        0,
        "torch's threads per worker; 0: OMP_NUM_THREADS, else what measures faster, at most the cores ÷ workers",
    ),
    Flag("replicas", whole(1, 64), 1, "worker processes; with device auto or cuda they spread over the GPUs"),
    Flag("tensor_parallel_size", whole(1, 64), 1, "processes that share the model of each worker, a GPU each"),
    Flag("forward_timeout", number(0.1, 86_400), DEFAULTS.forward_seconds, "seconds until a silent worker is replaced"),
    Flag("max_logit_rows", whole(1, 2**20), _ENGINE.max_logit_rows, "positions scored at once; bounds logits' memory"),
    Flag("max_model_len", whole(1, 2**31), None, "context limit in tokens; absent: the model's own"),
    Flag("max_num_seqs", whole(1, 65_536), _ENGINE.max_num_seqs, "sequences that run at once per worker"),
    Flag("max_num_batched_tokens", whole(1, 2**24), _ENGINE.max_num_batched_tokens, "query tokens per forward"),
    Flag(
        "max_refresh_tokens",
        whole(1, 2**24),
        _ENGINE.max_refresh_tokens,
        "tokens of long prompts that a forward takes on while others are answered",
    ),
    Flag("max_cache_tokens", whole(1, 2**31), None, "slots of the key-value cache; absent: what fits the memory"),
    Flag("prefix_cache", switch, _ENGINE.prefix_cache, "false: requests that begin alike share nothing"),
    Flag("compile", switch, False, "true: layers go through torch.compile at start; needs a compiler"),
    Flag("cuda_graphs", switch, False, "true: small denoising forwards are recorded and repeated; needs a GPU"),
    Flag("policy", choice(*POLICY_NAMES), _DECODER.policy, "default transfer policy"),
    Flag("k", whole(1, 1024), _DECODER.k, "default positions per denoising step of topk"),
    Flag("threshold", number(0, 1), _DECODER.threshold, "default confidence (margin) that decides a position"),
    Flag("factor", number(0, 1000), _DECODER.factor, "default factor of the factor policy"),
    Flag("gamma", number(0, 1000), _DECODER.gamma, "default entropy bound of the entropy policy, in nats"),
    Flag("relaxed_threshold", number(0, 1), _DECODER.relaxed_threshold, "default confidence of localleap, nearby"),
    Flag("window", whole(0, 1024), _DECODER.window, "default positions that count as near for localleap"),
    Flag("branches", whole(1, 32), _DECODER.branches, "default branches of lopa"),
    Flag("block_length", whole(1, 1024), None, "default positions denoised together; absent: the model's own, or 32"),
    Flag(
        "draft_depth",
        whole_or(("auto",), 0, 32),
        "auto",  # a server has others to serve; the library's own default does not depend on time
        "default number of drafted states; 0 drafts nothing, auto chooses for every forward",
    ),
    Flag(
        "draft_increment",
        whole_or(INCREMENT_NAMES, 1, 1024),
        _DECODER.draft_increment,
        "default positions per draft, or policy, or subsets",
    ),
    Flag("acceptance", choice(*ACCEPTANCE_NAMES), _DECODER.acceptance, "default acceptance rule"),
    Flag("cache", choice(*CACHE_NAMES), None, "default cache mode; absent: causal where it is exact, else none"),
    Flag("canvas_blocks", whole(0, 1_000_000), None, "masked blocks visible ahead; absent: the whole canvas"),
    Flag("edit_threshold", number(0, 1), None, "default probability that replaces a decided token; absent: no editing"),
    Flag("max_edit_passes", whole(1, 1024), _DECODER.max_edit_passes, "default forwards that may edit a full block"),
    Flag("decoder_config", text, None, "TOML or JSON file with default decoder settings; the flags above win over it"),
    Flag("seed", whole(-(2**63), 2**63 - 1), None, "seed of requests that give none; absent: a new one each"),
    Flag("default_max_tokens", whole(1, 2**31), DEFAULTS.chat_max_tokens, "chat answers without a max_tokens"),
    Flag("host", text, "127.0.0.1", "address to listen on; 0.0.0.0 for every interface"),
    Flag("port", whole(0, 65_535), 8000, "port to listen on; 0 takes a free one"),
    Flag("root_path", str, "", "path prefix that a proxy in front strips"),
    Flag("ssl_keyfile", text, None, "TLS key; needs --ssl-certfile"),
    Flag("ssl_certfile", text, None, "TLS certificate chain; needs --ssl-keyfile"),
    Flag("allowed_origins", text, (), "web origin that may call the API (CORS); absent: none", repeats=True),
    Flag("api_key", secret, (), "key that clients must send; absent: no key is asked", repeats=True),
    Flag("api_key_file", text, None, "file with a line sha256:HEX [name] per key"),
    Flag("max_key_seqs", whole(0, 1_000_000), 0, "sequences that a key may have open at once; 0: no limit"),
    Flag("max_key_requests", whole(0, 1_000_000), 0, "requests per minute that a key may make; 0: no limit"),
    Flag("open_metrics", switch, False, "true: /metrics answers without a key"),
    Flag("no_playground", switch, False, "true: the built-in page is not served at /"),
    Flag("max_waiting", whole(0, 1_000_000), DEFAULTS.max_waiting, "sequences queued beyond the running ones"),
    Flag("max_stop_strings", whole(0, 1024), DEFAULTS.max_stop_strings, "stop strings per request"),
    Flag("max_body_bytes", whole(1024, 2**30), DEFAULTS.max_body_bytes, "largest request body"),
    Flag("max_connections", whole(1, 1_000_000), DEFAULTS.max_connections, "open at once; idle ones give way"),
    Flag("queue_timeout", number(0, 86_400), 0.0, "seconds a request may wait for its first forward; 0: any time"),
    Flag("request_timeout", number(0, 86_400), 0.0, "seconds until a request is given up; 0: never"),
    Flag("read_timeout", number(0.1, 3600), DEFAULTS.read_seconds, "seconds for a header, and for a body, to arrive"),
    Flag(
        "stream_stall_timeout",
        number(0.1, 3600),
        DEFAULTS.stall_seconds,
        "seconds a client may read nothing of its answer",
    ),
    Flag("ping_interval", number(0, 3600), 0.0, "seconds of silence until a stream sends a comment; 0: none"),
    Flag("drain_timeout", number(0, 86_400), DEFAULTS.drain_seconds, "seconds for open requests after SIGTERM"),
    Flag("otlp_endpoint", web_address, None, "URL that traces are sent to (OTLP over HTTP); needs the extra otel"),
    Flag("log_format", choice(*LOG_FORMATS), "text", "text, or json for one object per line"),
    Flag("log_level", choice(*LOG_LEVELS), "info", "least severe messages to log"),
)
