"""Figures of docs/BENCHMARKS.md that need several clients of one server; the standard library alone.

    python3 clients/measure.py gaps URL [ROW..]  token gaps of ten streams beside a hostile request
    python3 clients/measure.py tenants URL A B   first tokens of prompts that another key has asked

For `tenants` the server has the keys A and B.
"""

import http.client
import json
import os
import statistics
import sys
import threading
import time
import urllib.parse

STREAMS = 10
TOKENS = 24


class Client:
    def __init__(self, url, key=None):
        place = urllib.parse.urlsplit(url)
        self.place = (place.hostname, place.port)
        self.headers = {"content-type": "application/json"}
        if key:
            self.headers["authorization"] = "Bearer " + key

    def ask(self, method, route, body, headers=None):
        """The response to one request, unread."""
        connection = http.client.HTTPConnection(*self.place, timeout=120)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        body = body.encode() if isinstance(body, str) else body
        connection.request(method, route, body, {**self.headers, **(headers or {})})
        return connection.getresponse()

    def stream(self, prompt, tokens, begun=lambda: None):
        """When each token came, in seconds from the request; `begun` is called at the second."""
        began = time.perf_counter()
        body = {
            "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "logprobs": 0,
        }
        response = self.ask("POST", "/v1/completions", body)
        assert response.status == 200, response.read()
        times = []
        for line in response:
            if line.startswith(b"data: {") and b'"finish_reason":null' in line:
                times.append(time.perf_counter() - began)
                if len(times) == 2:
                    begun()
        assert len(times) >= tokens, (len(times), tokens)
        return times


def hostile_lines():
    """Requests of the gateway's tests that a client can send by a library, and that are refused."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(folder, "../crates/gateway/tests/http/hostile_requests.jsonl")
    with open(path) as lines:
        cases = [json.loads(line) for line in lines]
    refused = [case for case in cases if str(case["expect"]).startswith("4")]
    return [case for case in refused if "expand" not in case and "headers" not in case]


# What each row of the table of limits bounds, beyond its limit.
ROWS = {
    "body": lambda: {"prompt": "x" * (11 << 20)},
    "depth": lambda: '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "nodes": lambda: {"prompt": "x", "metadata": {str(n): n for n in range(300_000)}},
    "messages": lambda: {"messages": [{"role": "user", "content": "x"}] * 3_000},
    "tools": lambda: {"messages": [{"role": "user", "content": "x"}], "tools": [tool("t", {})] * 200},
    "n": lambda: {"prompt": "x", "n": 100_000},
    "context": lambda: {"prompt": "word " * 100_000},
    "logit_bias": lambda: {"prompt": "x", "logit_bias": {str(n): 1 for n in range(2_000)}},
    "schema": lambda: forced({"type": "object", "properties": {
        "p%d" % n: {"type": "string", "pattern": "(a|b|c|d){1,%d}x{0,99}" % (90 + n)} for n in range(60)
    }}),
    "grammar": lambda: forced({"type": "array", "maxItems": 4_000, "items": {
        "enum": ["%d-%s" % (n, "y" * 9) for n in range(4_000)]
    }}),
    "short-chat": lambda: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8},
    "long-prompt": lambda: {"prompt": "word " * 380, "max_tokens": 1},
}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def forced(schema):
    format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    return {
        "messages": [{"role": "user", "content": "x"}], "response_format": format, "max_tokens": 8,
    }


def gaps(client, meanwhile):
    """Gaps between tokens of all streams, in milliseconds; `meanwhile` is called once they flow."""
    found, failed = [], []
    flowing = threading.Barrier(STREAMS + 1 if meanwhile else STREAMS)

    def good(number):
        try:
            times = client.stream(f"Story number {number}: once upon a time", TOKENS, flowing.wait)
            found.extend(1000 * (b - a) for a, b in zip(times, times[1:]))
        except Exception as error:
            failed.append(repr(error))

    def hostile():
        flowing.wait()
        meanwhile()

    streams = [threading.Thread(target=good, args=(number,)) for number in range(STREAMS)]
    other = threading.Thread(target=hostile) if meanwhile else None
    for thread in streams + ([other] if other else []):
        thread.start()
    for thread in streams:
        thread.join()
    if other:
        other.join()
    assert not failed, failed
    found.sort()
    return statistics.median(found), found[int(len(found) * 0.99)], found[-1]


def measure_gaps(url, wanted):
    client = Client(url)
    cases = hostile_lines()

    def send(method, route, body):
        try:
            response = client.ask(method, route, body)
            response.read()
            assert response.status < 500, (response.status, route)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of the body was sent

    def all_lines():
        for case in cases:
            body = case.get("raw", case.get("body"))
            send(case["method"], case["route"], body)

    gaps(client, None)
    baseline = []
    rows = [("hostile", all_lines)]
    for name, make in ROWS.items():
        body = make()
        text = body if isinstance(body, str) else json.dumps(body)
        route = "/v1/chat/completions" if '"messages"' in text[:200] else "/v1/completions"
        rows.append((name, lambda route=route, text=text: send("POST", route, text)))
    print("beside                    p50     p99     max  p99 ratio")
    for name, meanwhile in rows:
        if wanted and name not in wanted:
            continue
        alone, beside = gaps(client, None), gaps(client, meanwhile)
        baseline.append(alone[1])
        print("%-22s %6.1f  %6.1f  %6.1f  %.2f" % (name, *beside, beside[1] / alone[1]), flush=True)
    print("alone: p99 median %.1f" % statistics.median(baseline))


def measure_tenants(url, key, other):
    first, second = Client(url, key), Client(url, other)
    times = {"own prompt, again": [], "another key's prompt": [], "nobody's prompt": []}
    for round in range(6):
        words = " ".join(str(round * 1000 + n) for n in range(110))
        fresh = " ".join(str(round * 1000 + 500 + n) for n in range(110))
        first.stream(words, 2)
        times["own prompt, again"].append(first.stream(words, 2)[0])
        times["another key's prompt"].append(second.stream(words, 2)[0])
        times["nobody's prompt"].append(second.stream(fresh, 2)[0])
    for name, found in times.items():
        found = sorted(1000 * value for value in found)
        print("%-22s median %6.1f ms, %6.1f to %6.1f" % (name, statistics.median(found), found[0], found[-1]))


def main():
    match sys.argv[1:]:
        case ["gaps", url, *rows]:
            measure_gaps(url, rows)
        case ["tenants", url, key, other]:
            measure_tenants(url, key, other)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
