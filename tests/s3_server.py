"""moto's S3 server on this machine, and a proxy that injects faults."""

import contextlib
import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Fault = Callable[[str, str, int], str]
"""(method, path, number of earlier requests) -> "" (none), "refused" (not done), "lost" (done, and answered by an
error), "conflict" (not done, as S3 does while another request is in flight), "ignored" (done without its condition) or
"slow" (done, and answered LATE_S later)."""
LATE_S = 2.0


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Its port; it has the bucket lab, and takes any credentials."""
    command = [sys.executable, "-c", "from moto.server import main; main(['-p', '0'])"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = next(int(line.rpartition(":")[2]) for line in process.stderr if "Running on" in line)
        threading.Thread(target=process.stderr.read, daemon=True).start()  # else it stands still at a full pipe
        request(port, "PUT", "/lab")
        yield port
    finally:
        process.kill()
        process.wait()


def request(port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    """Ask the server itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse().read()
    connection.close()
    return answer


class Proxy:
    """Before the server on a port. `fault` may be changed at any time; `seen` are the requests, as "METHOD path"."""

    def __init__(self, server: int) -> None:
        self.fault: Fault = lambda method, path, count: ""
        self.seen: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy.fault(self.command, self.path, len(proxy.seen))
                proxy.seen.append(f"{self.command} {self.path}")
                status, reason, headers, answer = 503, "Slow Down", [], b""
                if fault == "conflict":
                    status, reason = 409, "ConditionalRequestConflict"
                elif fault != "refused":
                    if fault == "ignored":
                        del self.headers["If-None-Match"]
                        fault = ""
                    upstream = http.client.HTTPConnection("127.0.0.1", server, timeout=60)
                    upstream.request(self.command, self.path, body, dict(self.headers))
                    response = upstream.getresponse()
                    answer = response.read()
                    if fault == "slow":
                        time.sleep(LATE_S)
                    if fault != "lost":
                        status, reason, headers, fault = response.status, response.reason, response.getheaders(), ""
                    upstream.close()
                self.send_response_only(status, reason)
                for name, value in headers:
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = {k.lower(): v for k, v in headers}.get("content-length", "0")
                self.send_header("Content-Length", length if self.command == "HEAD" else str(len(answer) * (not fault)))
                self.end_headers()
                if not fault and self.command != "HEAD":
                    with contextlib.suppress(BrokenPipeError):  # Nobody waits for it any more.
                        self.wfile.write(answer)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        """What lies behind it."""
        return f"s3://lab/diffusion?endpoint=http://127.0.0.1:{self.port}&region=us-east-1"

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
