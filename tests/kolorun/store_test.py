#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# The store of kolorun, by its client in C and by requests that are made by hand: good, unsigned, wrongly signed, too
# large, replayed, and noise. usage: store_test.py KOLORUN STORE_RANK CASE
import hashlib
import http.client
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import matches, run_case, same, until

KOLORUN, STORE_RANK = sys.argv[1:3]
LIMIT_S = 50
TMP = None


class Job:
    """A job of one rank that waits until it is told to end; we have its key and address."""
    def __enter__(self):
        program = (f"cat $KOLO_STORE_KEY_FILE > {TMP}/key; stat -c %a $KOLO_STORE_KEY_FILE > {TMP}/mode; "
                   f"echo $KOLO_STORE > {TMP}/address.new; mv {TMP}/address.new {TMP}/address; "
                   f"while [ ! -e {TMP}/end ]; do sleep 0.02; done; echo ended well")
        self.p = subprocess.Popen([KOLORUN, "-n", "1", "--store", "sh", "-c", program], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: (TMP / "address").exists() or self.p.poll() is not None, "the rank to start")
        assert self.p.poll() is None, self.p.stderr.read()
        self.host, port = (TMP / "address").read_text().strip().rsplit(":", 1)
        self.port, self.key, self.client, self.count = int(port), (TMP / "key").read_bytes(), os.urandom(16).hex(), 0
        same(((TMP / "mode").read_text(), len(self.key)), ("600\n", 32))
        return self

    def __exit__(self, kind, *rest):
        if kind:
            self.p.kill()
            self.p.communicate()

    def end(self):
        """The job goes on to its good end whatever came; returns what kolorun says."""
        (TMP / "end").touch()
        out, err = self.p.communicate(timeout=LIMIT_S)
        same((self.p.returncode, out), (0, "[0] ended well\n"))
        return err

    def sign(self, what, count, body_hash, key=None):
        text = f"kolo-store 1\n{what}\n{self.client}\n{count}\n{body_hash}\n"
        return hashlib.blake2b(text.encode(), digest_size=32, key=key or self.key).hexdigest()

    def ask(self, method, path, body=b"", sign=True, answered=True, **change):
        self.count += 1
        headers = {}
        if sign:
            body_hash = hashlib.blake2b(body, digest_size=32).hexdigest()
            headers = {"Kolo-Client": self.client, "Kolo-Count": str(self.count), "Kolo-Body": body_hash,
                       "Kolo-Signature": self.sign(f"{method} {path}", self.count, body_hash)}
        headers.update({k.replace("_", "-"): v for k, v in change.items()})
        c = http.client.HTTPConnection(self.host, self.port, timeout=LIMIT_S)
        c.request(method, path, body or None, headers)
        r = c.getresponse()
        data = r.read()
        if r.status in (200, 404) and answered:
            data_hash = hashlib.blake2b(data, digest_size=32).hexdigest()
            same(r.headers["Kolo-Signature"], self.sign(str(r.status), int(headers["Kolo-Count"]), data_hash))
        elif sign is False:
            assert r.headers["Kolo-Signature"] is None, "something was proved to a stranger"
        c.close()
        return r.status, data


def test_ranks_share_values():
    p = subprocess.run([KOLORUN, "-n", "3", "--store", STORE_RANK], capture_output=True, text=True, timeout=LIMIT_S)
    same((p.returncode, sorted(p.stdout.splitlines()), p.stderr), (0, [f"[{r}] sum 3" for r in range(3)], ""))


def test_signed_requests_are_served():
    with Job() as job:
        same(job.ask("GET", "/a/b"), (404, b""))
        same(job.ask("PUT", "/a/b", b"\0binary\xff"), (200, b""))
        same(job.ask("GET", "/a/b"), (200, b"\0binary\xff"))
        same(job.ask("PUT", "/a/b", b"new"), (200, b""))
        same(job.ask("GET", "/a/b"), (200, b"new"))
        same(job.ask("DELETE", "/a/b"), (200, b""))
        same(job.ask("GET", "/a/b"), (404, b""))
        same(job.end(), "")


def test_unsigned_requests_are_refused_and_counted():
    with Job() as job:
        job.ask("PUT", "/a/b", b"mine")
        for method in ("GET", "PUT", "DELETE"):
            same(job.ask(method, "/a/b", b"x" if method == "PUT" else b"", sign=False)[0], 403)
        same(job.ask("GET", "/a/b"), (200, b"mine"))
        matches("store refused 3 requests: 3 unsigned, 0 wrongly signed, 0 replayed, 0 too large, 0 malformed", job.end())


def test_wrong_signatures_are_refused_and_counted():
    with Job() as job:
        job.ask("PUT", "/a/b", b"mine")
        empty = hashlib.blake2b(b"", digest_size=32).hexdigest()
        other_key = job.sign("GET /a/b", job.count + 1, empty, key=bytes(32))
        same(job.ask("GET", "/a/b", Kolo_Signature=other_key)[0], 403)
        other_path = job.sign("GET /a/c", job.count + 1, empty)
        same(job.ask("GET", "/a/b", Kolo_Signature=other_path)[0], 403)
        other_method = job.sign("GET /a/b", job.count + 1, empty)
        same(job.ask("DELETE", "/a/b", Kolo_Signature=other_method)[0], 403)
        # the signature of another body, which is then not what came
        other_body = hashlib.blake2b(b"theirs", digest_size=32).hexdigest()
        signed = job.sign("PUT /a/b", job.count + 1, other_body)
        same(job.ask("PUT", "/a/b", b"changed on the way", Kolo_Body=other_body, Kolo_Signature=signed)[0], 403)
        same(job.ask("GET", "/a/b"), (200, b"mine"))
        matches("store refused 4 requests: 0 unsigned, 4 wrongly signed", job.end())


def test_replayed_requests_are_refused_and_counted():
    with Job() as job:
        body_hash = hashlib.blake2b(b"old", digest_size=32).hexdigest()
        recorded = {"Kolo_Client": job.client, "Kolo_Count": "1", "Kolo_Body": body_hash,
                    "Kolo_Signature": job.sign("PUT /a/b", 1, body_hash)}
        same(job.ask("PUT", "/a/b", b"old", answered=False, **recorded)[0], 200)
        job.ask("PUT", "/a/b", b"new")
        same(job.ask("PUT", "/a/b", b"old", answered=False, **recorded)[0], 403)
        same(job.ask("GET", "/a/b"), (200, b"new"))
        matches("store refused 1 request: 0 unsigned, 0 wrongly signed, 1 replayed", job.end())


def test_clients_that_asked_long_ago_are_forgotten():
    remembered = 4096  # KOLO_STORE_CLIENTS_MAX
    with Job() as job:
        body_hash = hashlib.blake2b(b"old", digest_size=32).hexdigest()
        recorded = {"Kolo_Client": job.client, "Kolo_Count": "1", "Kolo_Body": body_hash,
                    "Kolo_Signature": job.sign("PUT /a/b", 1, body_hash)}
        same(job.ask("PUT", "/a/b", b"old", answered=False, **recorded)[0], 200)
        for i in range(remembered + 1):
            job.client = os.urandom(16).hex()
            same(job.ask("PUT", "/a/b", b"new"), (200, b""))
        same(job.ask("PUT", "/a/b", b"old", answered=False, **recorded)[0], 403)
        same(job.ask("GET", "/a/b"), (200, b"new"))
        matches("store refused 1 request: 0 unsigned, 0 wrongly signed, 1 replayed", job.end())


def test_oversized_requests_are_refused_and_counted():
    with Job() as job:
        big = b"x" * ((1 << 20) + 1)
        for chunked in (False, True):
            job.count += 1
            body_hash = hashlib.blake2b(big, digest_size=32).hexdigest()
            head = (f"PUT /a/b HTTP/1.1\r\nHost: store\r\nKolo-Client: {job.client}\r\nKolo-Count: {job.count}\r\n"
                    f"Kolo-Body: {body_hash}\r\nKolo-Signature: {job.sign('PUT /a/b', job.count, body_hash)}\r\n")
            head += "Transfer-Encoding: chunked\r\n\r\n" if chunked else f"Content-Length: {len(big)}\r\n\r\n"
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(big), big) if chunked else b""
            with socket.create_connection((job.host, job.port), LIMIT_S) as s:
                s.sendall(head.encode() + body)
                answer = b""
                while b"\r\n" not in answer:
                    got = s.recv(4096)
                    assert got, "the connection was closed without an answer"
                    answer += got
            matches(r"HTTP/1.1 413 ", answer.decode())
        # headers without end
        with socket.create_connection((job.host, job.port), LIMIT_S) as s:
            try:
                s.sendall(b"GET /a/b HTTP/1.1\r\n" + b"X-Long: " + b"y" * (1 << 20))
                while s.recv(4096):
                    pass
            except (ConnectionResetError, BrokenPipeError):
                pass
        same(job.ask("GET", "/a/b"), (404, b""))
        matches("store refused 2 requests: 0 unsigned, 0 wrongly signed, 0 replayed, 2 too large", job.end())


def test_malformed_requests_are_refused_and_counted():
    with Job() as job:
        for path in ("/", "/a", "/a/", "/a/b/c", "//b", "/a/b%20c", "/" + "a" * 129 + "/b", "/a/" + "b" * 5000):
            same(job.ask("GET", path)[0], 400)
        same(job.ask("POST", "/a/b", b"x")[0], 400)
        same(job.ask("GET", "/a/b", Kolo_Client="not hex")[0], 400)
        same(job.ask("GET", "/a/b", Kolo_Count="-1")[0], 400)
        for noise in (b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", os.urandom(4096)):
            with socket.create_connection((job.host, job.port), LIMIT_S) as s:
                s.sendall(noise)
        same(job.ask("PUT", "/a/b", b"fine")[0], 200)
        matches("store refused 11 requests: .* 11 malformed", job.end())


def test_many_strangers_keep_nobody_out():
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with Job() as job:
        # They connect and say nothing: more than the server has connections, so that who comes now would wait until
        # the first are given up, after ten seconds.
        idle = [socket.create_connection((job.host, job.port), LIMIT_S) for _ in range(700)]
        before = time.monotonic()
        same(job.ask("PUT", "/a/b", b"fine")[0], 200)
        took = time.monotonic() - before
        assert took < 8, f"it took {took} s"
        for s in idle:
            s.close()
        same(job.end(), "")


def test_ranks_here_take_no_heed_of_an_ssh_around_kolorun():
    p = subprocess.run([KOLORUN, "-n", "2", "--store", "sh", "-c", "echo ${KOLO_STORE%:*}"], capture_output=True, text=True,
                       timeout=LIMIT_S, env={**os.environ, "SSH_CONNECTION": "203.0.113.7 50000 203.0.113.1 22"})
    same((p.returncode, sorted(p.stdout.splitlines()), p.stderr), (0, [f"[{r}] 127.0.0.1" for r in range(2)], ""))


def test_processes_of_a_host_that_comes_later_find_what_was_put():
    """In a job of kolorun --min; the second host is another name of this one."""
    (TMP / "hosts").write_text("localhost:1\n")
    program = (f"if [ $KOLO_ELASTIC_WORKER = 0 ]; then KOLO_RANK=0 KOLO_NRANKS=1 {STORE_RANK} || exit; echo 127.0.0.1:1 >> {TMP}/hosts; "
               f"while [ ! -e {TMP}/end ]; do sleep 0.02; done; else KOLO_RANK=1 KOLO_NRANKS=2 {STORE_RANK}; s=$?; touch {TMP}/end; exit $s; fi")
    p = subprocess.run([KOLORUN, "--min", "1", "--max", "2", "--discover", f"cat {TMP}/hosts", "--discover-every", "0.05", "--timeout", "30",
                        "--back-off", "1000", "--store", "sh", "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    same((p.returncode, sorted(p.stdout.splitlines()), p.stderr), (0, ["[0] sum 0", "[1] sum 1"], ""))


def test_key_is_on_no_command_line_and_in_no_environment():
    with Job() as job:
        for proc in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            except OSError:
                continue
            assert job.key not in text and job.key.hex().encode() not in text, f"the key shows in {proc}"
        job.end()


run_case(globals(), sys.argv[3])
