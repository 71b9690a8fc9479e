"""The health check of the container: exit status 0 while /health answers 200.

Reads the port and whether TLS is on where the server reads them, so set both by variable, not by flag. The
certificate is not verified: it names the public host, and this asks the loopback interface.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 4.0


def main() -> int:
    """0 healthy, 1 not."""
    scheme = "https" if os.environ.get("PSD_SSL_CERTFILE") else "http"
    url = f"{scheme}://127.0.0.1:{os.environ.get('PSD_PORT', '8000')}/health"
    context = ssl._create_unverified_context()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS) as response:
            print(response.read().decode())
    except (OSError, urllib.error.URLError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
