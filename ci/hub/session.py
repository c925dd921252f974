"""One cache, two programs: Python's `huggingface_hub` reads what `trine pull` wrote, and the other way round.

A small hub on this machine serves the demo model. What one program has put into the cache the other must find there,
with the network and without, and must not download again.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

TRINE = os.path.abspath(os.environ.get("TRINE", "trine"))
MODEL = Path("models/tales-bitnet-20m")
FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
REPO = "owner/tales"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def tag(name, content):
    """A blob's name: SHA-256 of large files, which lie in a storage of their own, and git's SHA-1 of small ones."""
    if name.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that both clients use."""

    protocol_version = "HTTP/1.1"
    content = {name: (MODEL / name).read_bytes() for name in FILES}
    # Bytes of files that were sent.
    sent = 0

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.reply(body=False)

    def do_GET(self):
        self.reply(body=True)

    def head(self, status, headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, str(value))
        self.end_headers()

    def reply(self, body):
        path = urlparse(self.path).path
        if path.startswith(f"/api/models/{REPO}"):
            answer = json.dumps(self.listing("/tree/" in path)).encode()
            self.head(200, {"Content-Type": "application/json", "Content-Length": len(answer)})
            if body:
                self.wfile.write(answer)
            return
        name = path.rsplit("/", 1)[-1]
        content = self.content.get(name)
        if content is None:
            return self.head(404, {"X-Error-Code": "EntryNotFound", "Content-Length": 0})
        mark = {"X-Repo-Commit": COMMIT}
        if name.endswith(".safetensors"):
            mark |= {"X-Linked-Size": len(content), "X-Linked-ETag": f'"{tag(name, content)}"'}
            if not path.startswith("/storage/"):
                return self.head(302, mark | {"Location": f"/storage/{name}", "ETag": '"link"', "Content-Length": 0})
        mark |= {"ETag": f'"{tag(name, content)}"', "Accept-Ranges": "bytes"}
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        rest = content[start:]
        if start:
            mark["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.head(206 if start else 200, mark | {"Content-Length": len(rest)})
        if body:
            Hub.sent += len(rest)
            self.wfile.write(rest)

    def listing(self, tree):
        if tree:
            return [{"type": "file", "path": name, "oid": tag(name, content), "size": len(content)}
                    for name, content in self.content.items()]
        files = [{"rfilename": name, "size": len(content)} for name, content in self.content.items()]
        return {"id": REPO, "modelId": REPO, "sha": COMMIT, "private": False, "disabled": False, "downloads": 0,
                "likes": 0, "tags": [], "siblings": files}


def run(command, endpoint, cache, offline):
    drop = {"HF_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"}
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": str(int(offline)),
                    "HF_TOKEN_PATH": "/nowhere/token", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    snapshot = f"from huggingface_hub import snapshot_download; print(snapshot_download({REPO!r}))"
    clients = {"trine": [TRINE, "pull", REPO, "-q"], "huggingface_hub": [sys.executable, "-c", snapshot]}
    story = [TRINE, "run", "Once upon a time", "-n", "12", "-s", "1", "-q"]
    with tempfile.TemporaryDirectory() as folder:
        expected = run(story, endpoint, Path(folder), offline=True)
        for first, second in [("trine", "huggingface_hub"), ("huggingface_hub", "trine")]:
            cache = Path(folder) / first
            Hub.sent = 0
            place = run(clients[first], endpoint, cache, offline=False)
            whole = sum(map(len, Hub.content.values()))
            assert Hub.sent == whole, f"{first} was sent {Hub.sent} bytes of {whole}"
            for offline in [True, False]:
                found = run(clients[second], endpoint, cache, offline)
                assert Path(found).samefile(place), f"{second} finds {found}, {first} wrote {place}"
            assert Hub.sent == whole, f"{second} downloads again what {first} has put into the cache"
            for name, content in Hub.content.items():
                assert (Path(place) / name).read_bytes() == content, name
            told = run(story + ["-m", REPO], endpoint, cache, offline=True)
            assert told == expected, f"from the cache: {told}\nfrom the program: {expected}"
            print(f"{second} reads what {first} wrote")


main()
