"""An HTTP server on a free port of this machine, which answers as its handler says."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Says nothing on the terminal, and keeps connections."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format, *args):
        pass

    def read_json(self):
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def send(self, body, content_type="application/json", status=200, *, sent=None, **headers):
        """Answer with a text; with `sent`, close the connection after that number of bytes."""
        data = body.encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data[:sent])
        self.close_connection = sent is not None


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client may keep its connection
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Say nothing when a client goes away, as a process that a test kills does."""


@contextmanager
def serve(handler):
    """Run a server with a class of handlers; yield its port."""
    listener = _Listener(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield listener.server_port
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
