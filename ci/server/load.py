"""Clients that behave badly beside clients that do not: 64 at the same time.

The server must answer every sound request with the single user's text for its seed, or say that its queue is full; it
must not end, and its memory must not grow.
"""

import asyncio
import collections
import json
import random
import socket
import sys
import time

from program import Server, quantile, single_user

CLIENTS = 64
SLOTS = 8
MOST_GROWTH = 1.05
PROMPTS = [
    "Once upon a time there was a",
    "The king said",
    "In the forest lived an old",
    "The old miller had three sons, a mill, a donkey and a cat; the sons had to grind, the donkey to carry. " * 6,
]


class Load:
    def __init__(self, server, seconds):
        self.server = server
        self.end = time.monotonic() + seconds
        self.counts = collections.Counter()
        self.expected = {}
        for seed in range(12):
            prompt, tokens = PROMPTS[seed % len(PROMPTS)], 12 + 7 * (seed % 5)
            self.expected[prompt, tokens, seed] = single_user(prompt, tokens, seed)

    async def connect(self, small_buffer=False):
        sock = socket.socket()
        if small_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (self.server.host, self.server.port))
        return await asyncio.open_connection(sock=sock)

    @staticmethod
    def request(body, path="/v1/completions"):
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        return head.encode() + data

    def pick(self, chance):
        (prompt, tokens, seed), text = chance.choice(list(self.expected.items()))
        return {"prompt": prompt, "max_tokens": tokens, "seed": seed, "stream": chance.random() < 0.6}, text

    @staticmethod
    def text(answer, stream):
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        if b"transfer-encoding: chunked" in head.lower():
            whole = b""
            while body:
                size, _, rest = body.partition(b"\r\n")
                size = int(size, 16)
                whole, body = whole + rest[:size], rest[size + 2:]
            body = whole
        if status != 200:
            return status, json.loads(body)["error"]["code"]
        if not stream:
            return status, json.loads(body)["choices"][0]["text"]
        events = [line[6:] for line in body.decode().split("\n\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        return status, "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])

    def judge(self, kind, answer, body, expected):
        status, text = self.text(answer, body["stream"])
        if status == 429:
            self.counts["queue full"] += 1
            return
        assert status == 200, (kind, status, text)
        assert text == expected, f"{kind}: {body}: {text!r} rather than {expected!r}"
        self.counts[kind] += 1

    async def sound(self, chance):
        body, expected = self.pick(chance)
        reader, writer = await self.connect()
        writer.write(self.request(body))
        self.judge("answered", await reader.read(), body, expected)
        writer.close()

    async def slow(self, chance):
        body, expected = self.pick(chance)
        reader, writer = await self.connect(small_buffer=True)
        writer.write(self.request(body))
        answer = b""
        while piece := await reader.read(700):
            answer += piece
            await asyncio.sleep(chance.random() * 0.1)
        self.judge("answered slow readers", answer, body, expected)
        writer.close()

    async def leaving(self, chance):
        reader, writer = await self.connect()
        writer.write(self.request({"prompt": chance.choice(PROMPTS), "max_tokens": 800, "stream": chance.random() < 0.8,
                                   "logit_bias": {"2": -100}}))
        try:
            await asyncio.wait_for(reader.read(chance.randrange(1, 4000)), chance.random())
        except TimeoutError:
            pass
        writer.transport.abort() if chance.random() < 0.5 else writer.close()
        self.counts["left"] += 1

    async def half_closed(self, chance):
        body, _ = self.pick(chance)
        reader, writer = await self.connect()
        writer.write(self.request(body))
        writer.write_eof()
        await reader.read()
        writer.close()
        self.counts["half closed"] += 1

    async def garbage(self, chance):
        reader, writer = await self.connect()
        kind = chance.randrange(4)
        if kind == 0:
            writer.write(chance.randbytes(chance.randrange(1, 3000)) + b"\r\n\r\n")
        elif kind == 1:
            writer.write(self.request({})[:chance.randrange(1, 60)])
        elif kind == 2:
            writer.write(self.request({"prompt": chance.choice([None, {}, ["a", 1], [-1], 7]), "temperature": "x"}))
        else:
            body = chance.randbytes(200)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 200\r\n\r\n" + body)
        try:
            answer = await asyncio.wait_for(reader.read(4000), 0.3)
            assert not answer or answer.split(b" ")[1] in (b"400", b"403", b"404", b"405"), answer
        except TimeoutError:
            pass
        writer.close()
        self.counts["garbage"] += 1

    async def oversized(self, chance):
        reader, writer = await self.connect()
        size = chance.choice([2 << 20, 5 << 20, 1 << 40])
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
        writer.write(head.encode())
        for _ in range(40):
            writer.write(b" " * (64 << 10))
        await writer.drain()
        if size <= 40 * (64 << 10):
            answer = await reader.read(2000)
            assert answer.split(b" ")[1] == b"413", answer
        writer.close()
        self.counts["oversized"] += 1

    async def client(self, number):
        chance = random.Random(number)
        kinds = [self.sound] * 9 + [self.slow] * 2 + [self.leaving] * 4 + [self.half_closed, self.garbage, self.oversized] * 2
        while time.monotonic() < self.end:
            try:
                await chance.choice(kinds)(chance)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.counts["connection lost"] += 1
            await asyncio.sleep(chance.random() * 0.05)

    async def watch(self, samples):
        while time.monotonic() < self.end:
            samples.append((time.monotonic(), self.server.rss()))
            assert self.server.process.poll() is None, self.server.lines
            await asyncio.sleep(0.25)

    async def run(self):
        samples = []
        await asyncio.gather(self.watch(samples), *(self.client(number) for number in range(CLIENTS)))
        return [size for _, size in samples]


def main():
    seconds = float(sys.argv[1])
    with Server("--slots", str(SLOTS), "--queue", "64", "--max-connections", "200", "--idle-timeout", "5") as server:
        load = Load(server, seconds)
        before = server.metrics()
        start = time.monotonic()
        sizes = asyncio.run(load.run())
        taken = time.monotonic() - start
        print(", ".join(f"{count} {kind}" for kind, count in sorted(load.counts.items())))
        # What clients left behind goes away by itself.
        deadline = time.monotonic() + 30
        while (after := server.metrics())["trine_slots_busy"] or after["trine_connections"] > 1:
            assert time.monotonic() < deadline, after
            time.sleep(0.1)
        quarter = len(sizes) // 4
        early, late = (sorted(part)[len(part) // 2] for part in (sizes[quarter:2 * quarter], sizes[-quarter:]))
        tokens = after["trine_tokens_total"] - before["trine_tokens_total"]
        print(f"{tokens / taken:.0f} tok/s in all with {SLOTS} slots")
        for share in (0.5, 0.99):
            bound = quantile(after, "trine_token_interval_seconds", share)
            print(f"time between tokens, p{share * 100:.0f}: at most {bound * 1000:g} ms")
        print(f"memory: {early / 2**20:.1f} MiB after a quarter, {late / 2**20:.1f} MiB at the end")
        assert load.counts["answered"] > 0 and load.counts["answered slow readers"] > 0, load.counts
        assert late <= early * MOST_GROWTH, "memory grows"
        assert server.terminate() == 0, server.lines
        assert not any("panicked" in line for line in server.lines), server.lines


main()
