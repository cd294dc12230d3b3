# SPDX-License-Identifier: Apache-2.0
#
# What the check scripts share: the list of the project's files, the functions in them, and the way a check ends.
import json
import os
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
C_DIRS = ("include", "src", "prove", "nccl_net", "tools", "tests", "bench", "examples")


def files():
    """The project's own files, relative to its top: what git knows or would add."""
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, text=True, capture_output=True)
    if out.returncode == 0:
        names = out.stdout.split("\n")
    else:  # an unpacked release: no git there
        names = [os.path.relpath(os.path.join(d, f), TOP) for d, _, fs in os.walk(TOP) for f in fs]
        names = [n for n in names if not n.startswith((".git/", "build"))]
    return sorted(n for n in set(names) if n and (TOP / n).is_file())


def c_files():
    return [n for n in files() if n.endswith((".c", ".h")) and n.split("/")[0] in C_DIRS]


def is_test(name):
    """Tests, fuzzers and what they share: kits, fixtures and the conformance kit of the wires."""
    base = name.rsplit("/", 1)[-1]
    return name.startswith("tests/") or base.endswith(("_test.c", "_fuzz.c")) or base.startswith(
        ("conformance", "testkit.", "fixture."))


# What one must read to change one wing: its own sources, and the headers of other folders that these include.
WINGS = {
    "RDMA": ("src/remote/verbs/", "src/wire/net/"),
    "GPUs": ("src/gpu/", "src/comm/gpu/"),
    "keyed tensors": ("src/rendezvous/", "src/remote/onesided/"),
    "named tensors": ("src/engine/",),
    "communicators on CPUs": ("src/comm/call/", "src/comm/life/", "src/exec/"),
}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def lines(name):
    return len((TOP / name).read_bytes().splitlines())


def wing(folders):
    """(lines of the wing's own sources, lines of the headers of others that they include), without tests."""
    mine = [n for n in files() if n.startswith(tuple(folders)) and n.endswith((".c", ".h", ".cu", ".cuh")) and not is_test(n)]
    headers = {"src/" + h for n in mine for h in INCLUDE.findall((TOP / n).read_text())}
    others = {h for h in headers if not h.startswith(tuple(folders)) and (TOP / h).is_file()}
    return sum(map(lines, mine)), sum(map(lines, others))


def language(name):
    """c, cpp, python, shell, meson, make or None, by name or by first line."""
    base = name.rsplit("/", 1)[-1]
    for suffix, lang in ((".c", "c"), (".h", "c"), (".cpp", "cpp"), (".hpp", "cpp"), (".py", "python"), (".sh", "shell"), (".map", "map")):
        if base.endswith(suffix):
            return lang
    if base in ("meson.build", "meson_options.txt"):
        return "meson"
    if base == "Makefile":
        return "make"
    if "." not in base or base.startswith("."):
        with open(TOP / name, "rb") as f:
            first = f.readline()
        if first.startswith(b"#!"):
            return "python" if b"python" in first else "shell"
    return None


def ctags(names, options):
    """The tags of the files, as dictionaries."""
    if not names:
        return []
    cmd = ["ctags", "--output-format=json", "--fields=+neS", "-f", "-", *options, "-L", "-"]
    out = subprocess.run(cmd, cwd=TOP, input="\n".join(names), text=True, capture_output=True, check=True)
    return [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]


def finish(check, problems, warnings=(), counted=""):
    """Prints what was found and leaves with the check's exit status."""
    for w in warnings:
        print(f"warning: {w}")
    for p in problems:
        print(f"{check}: {p}")
    print(f"{check}: {len(problems)} problems, {len(warnings)} warnings{', ' + counted if counted else ''}")
    sys.exit(1 if problems else 0)
