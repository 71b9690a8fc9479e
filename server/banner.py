"""The lines printed when a server is ready: what is served, how it decodes, and a command to try it."""

from __future__ import annotations

import json
from typing import TextIO

from server.admission import Admission
from server.figures import settings as decoder_settings
from server.settings import Settings
from server.version import VERSION

# Something the built-in model can do.
TRY_PROMPT = "Otto has 10 photos. Tom has 7 more than Otto. How many photos does Tom have?"

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def banner(settings: Settings, admission: Admission, url: str) -> str:
    """Plain text; the first line is the title."""
    facts = admission.facts
    name = settings.model.served_names[0]
    millions = facts.num_parameters / 1e6
    size = f"{millions / 1000:.1f} B" if millions >= 1000 else f"{millions:.1f} M"
    numbers = facts.dtype if facts.quantization == "none" else f"{facts.dtype} and {facts.quantization}"
    used = decoder_settings(admission.settings.decoder)
    decoder = ", ".join(f"{key} {value}" for key, value in used.items() if value is not None)
    workers = f", {settings.model.replicas} workers" if settings.model.replicas > 1 else ""
    if settings.model.tensor_parallel_size > 1:
        workers += (
            f" of {settings.model.tensor_parallel_size} ranks"
            if workers
            else f" and {settings.model.tensor_parallel_size - 1} more ranks"
        )
    prompt = {"model": name, "prompt": TRY_PROMPT, "max_tokens": 128}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.http.api_keys else ""
    page = (f"  watch    {url}/ in a browser: the playground",) if settings.http.has_playground else ()
    return "\n".join(
        (
            f"PSD server {VERSION}",
            f"  model    {name} ({facts.architecture}, {size} parameters, {numbers}, loaded in "
            f"{facts.load_seconds:.1f} s)",
            f"  device   {facts.device}{workers}, context {facts.limits.max_model_len} tokens",
            f"  decoder  {decoder}",
            f"  url      {url}",
            *page,
            f"  try      curl {url}/v1/completions -H 'Content-Type: application/json'{key} -d '{json.dumps(prompt)}'",
            "",
        )
    )


def print_banner(text: str, stream: TextIO) -> None:
    """Print it, with a bold title on a terminal."""
    title, _, rest = text.partition("\n")
    if stream.isatty():
        title = f"{_BOLD}{title}{_PLAIN}"
    stream.write(f"{title}\n{rest}")
    stream.flush()
