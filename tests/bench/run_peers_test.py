#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# bench/run_peers where no peer can run: every row that should be there is told as failed, by name, in the table, in
# the last line and in the JSON, and the exit status is 1. usage: run_peers_test.py RUN-PEERS
import json
import pathlib
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    p = subprocess.run([sys.argv[1], "--build", folder, "--results", folder, "--name", "none", "--runs", "1", "--ranks", "2",
                        "--wires", "local", "--no-p2p", "--max", "24", "all_reduce", "reduce_scatter"],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50)
    lines = p.stdout.splitlines()
    failed = json.loads((pathlib.Path(folder) / "peers-none.json").read_text())["failed"]
    text = (pathlib.Path(folder) / "peers-none.txt").read_text()
assert p.returncode == 1, p
told = [(w[0], int(w[3]), w[7]) for w in map(str.split, lines) if len(w) > 7 and w[4] == "failed"]
want = [(c, s, peer) for c in ("all_reduce", "reduce_scatter") for s in (8, 24) for peer in ("openmpi", "mpich", "gloo")
        if (c, peer) != ("reduce_scatter", "gloo")]
assert told == want, (told, want)
assert [(c, s, peer) for c, n, w, s, peer in failed] == want, failed
assert lines[-2:] == ["ratio all_reduce ranks=2 wire=local geomean=none min=none at=none failed=6",
                      "ratio reduce_scatter ranks=2 wire=local geomean=none min=none at=none failed=4"], lines[-2:]
assert lines[-1] in text and any(l.startswith("# problem: gloo") for l in lines), text
