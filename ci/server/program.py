"""Running `trine serve` and `trine run` from scripts."""

import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

TRINE = os.environ.get("TRINE", "trine")


class Server:
    """A running server: `with Server("--slots", "8") as server`."""

    def __init__(self, *args):
        command = [TRINE, "serve", "--port", "0", *args]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        first = self.process.stderr.readline()
        found = re.match(r"listening on (http://\S+)", first)
        assert found, f"{command}: {first}"
        self.url = found[1]
        self.host, port = self.url.removeprefix("http://").rsplit(":", 1)
        self.port = int(port)
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True).start()

    def __enter__(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return self
            except urllib.error.HTTPError as error:
                assert error.code == 503, error
            except TimeoutError:
                pass  # A busy machine: it is asked again.
            time.sleep(0.05)
        raise TimeoutError("the server is never ready")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def terminate(self):
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def rss(self):
        """Bytes of memory in use."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def metrics(self):
        """All numbers by name, labels included."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


def single_user(prompt, tokens, seed):
    """What `trine run` makes of a prompt."""
    command = [TRINE, "run", "-p", prompt, "-n", str(tokens), "-s", str(seed)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def quantile(metrics, name, share):
    """Upper bound of the bucket that holds this share of a histogram."""
    pattern = re.compile(re.escape(name) + r'_bucket\{le="([^"]+)"\}')
    buckets = [(float(found[1]), count) for key, count in metrics.items() if (found := pattern.fullmatch(key))]
    total = max(count for _, count in buckets)
    return next(bound for bound, count in sorted(buckets) if count >= share * total)
