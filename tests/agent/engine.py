"""A small engine for agent tests: llama-server's flags, health, model list and metrics; no model.

Environment: ENGINE_LOAD_S (503 for so long), ENGINE_EXIT (print, then exit with this status),
ENGINE_CHILD (fork a child that ignores SIGTERM), ENGINE_DEAF (ignore SIGTERM), ENGINE_SLEEP (never
listen), ENGINE_MUTE_AFTER (fail after so many questions for its health).
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FLAGS = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
KEY = os.environ.get("LLAMA_API_KEY")
ASKED: list[str] = []
READY_AT = time.monotonic() + float(os.environ.get("ENGINE_LOAD_S", "0"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            ASKED.append(self.path)
        if len(ASKED) > int(os.environ.get("ENGINE_MUTE_AFTER", "1000000")):
            self.reply(500, b"{}")
        elif time.monotonic() < READY_AT:
            self.reply(503, b'{"error": "Loading model"}')
        elif self.path == "/health":
            self.reply(200, b'{"status": "ok"}')
        elif KEY and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.reply(401, b"{}")
        elif self.path == "/v1/models":
            self.reply(200, json.dumps({"data": [{"id": FLAGS["--alias"]}]}).encode())
        elif self.path == "/metrics":
            self.reply(200, b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 0\n")
        elif self.path == "/environment":
            self.reply(200, json.dumps(dict(os.environ)).encode())
        else:
            self.reply(404, b"{}")

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    if "ENGINE_EXIT" in os.environ:
        say("error: the engine was told to fail")
        sys.exit(int(os.environ["ENGINE_EXIT"]))
    if "ENGINE_DEAF" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "ENGINE_CHILD" in os.environ:
        subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    if "ENGINE_SLEEP" in os.environ:
        signal.pause()
    server = ThreadingHTTPServer((FLAGS["--host"], int(FLAGS["--port"])), Handler)
    say(f"listening with key {KEY}")
    server.serve_forever()


if __name__ == "__main__":
    main()
