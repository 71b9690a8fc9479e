"""A real nginx in a process of its own, which runs deploy/nginx/psd.conf on free ports before one server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.deploy.ports import free_port
from tests.server.process import wait_until

CONFIG = Path(__file__).parents[2] / "deploy" / "nginx" / "psd.conf"
FRAME = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr notice;
{user}
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {content}
}}
"""


def nginx_config(folder: Path, content: str) -> str:
    """A whole configuration that runs in the foreground and keeps to `folder`; `content` is that of its http block."""
    user = "user root;" if os.geteuid() == 0 else ""
    return FRAME.format(folder=folder, user=user, content=content)


class NginxProcess:
    """The project's file with other ports and a certificate made on the spot. Use as a context manager."""

    def __init__(self, upstream: str, folder: Path) -> None:
        """upstream: host:port of the server."""
        ports = {"80": free_port(), "443": free_port()}
        text = CONFIG.read_text()
        for old, new in {
            "server 127.0.0.1:8000;": f"server {upstream};",
            "listen 80;": f"listen 127.0.0.1:{ports['80']};",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{ports['443']} ssl http2;",
            "/etc/nginx/psd/": f"{folder}/",
            "rate=20r/s": "rate=1r/s",  # a slow machine must be able to exceed it
        }.items():
            assert old in text
            text = text.replace(old, new)
        (folder / "psd.conf").write_text(text)
        (folder / "nginx.conf").write_text(nginx_config(folder, f"include {folder}/psd.conf;"))
        make_certificate(folder)
        self.command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
        self._log = (folder / "nginx.log").open("w")
        self._process = subprocess.Popen(self.command, stdout=self._log, stderr=subprocess.STDOUT)
        self.client = httpx.Client(base_url=f"https://127.0.0.1:{ports['443']}", verify=False, timeout=60)
        self.plain_url = f"http://127.0.0.1:{ports['80']}"
        try:
            wait_until(self._answers, 30)
        except BaseException:  # nobody else will end the process
            self.__exit__(None, None, None)
            raise

    def _answers(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            self.client.get("/metrics")
        except httpx.ConnectError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait()
        self._log.close()


def make_certificate(folder: Path) -> None:
    """A key and a certificate that signs itself."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", "/CN=psd.example"),
            *("-keyout", str(folder / "privkey.pem"), "-out", str(folder / "fullchain.pem")),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
