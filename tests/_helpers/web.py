"""HTTP server of fixed content, for tests of downloads."""

import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def server():
    """Serves fixed content and counts the requests.

    Yields ``start(content, path, declared=None)``, which returns the URL and the state;
    ``declared`` overrides the Content-Length.
    """
    state = {"content": b"", "requests": 0, "declared": None}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state["requests"] += 1
            self.send_response(200)
            self.send_header("Content-Length", str(state["declared"] or len(state["content"])))
            self.end_headers()
            with suppress(ConnectionError):  # a client may hang up early
                self.wfile.write(state["content"])

        def log_message(self, *_):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()

    def start(content, path, declared=None):
        state.update(content=content, declared=declared)
        return f"http://127.0.0.1:{http.server_port}/{path}", state

    yield start
    http.shutdown()
    http.server_close()
    thread.join()
