"""A tool behind HTTP, possible in any language with a web server; here with Python's own.

    python examples/http_tool.py
    ./run_proxy.sh tools set examples/http_tool.json

The proxy sends `POST {"call_id", "name", "args"}`. The body of a 2xx answer is the result, JSON or text; report wrong
arguments there too. Of any other answer, the model sees only the status. 408, 429 and 5xx are retried if the tool has
`retries`.
"""

import argparse
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RATES = {"EUR": 1.0, "GBP": 0.85, "JPY": 162.0, "NOK": 11.5, "USD": 1.08}


def convert_currency(amount: float, source: str, target: str) -> dict[str, Any]:
    """Convert an amount to another currency. Raises KeyError for an unknown currency."""
    return {"amount": round(amount / RATES[source] * RATES[target], 2), "currency": target}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self._answer(convert_currency(**call["args"]))
        except KeyError as error:
            self._answer({"error": f"{error} is unknown; known currencies: {list(RATES)}"})

    def _answer(self, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve convert_currency on loopback.")
    parser.add_argument("--port", type=int, default=9321, help="0: any free port")
    with ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}/run", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
