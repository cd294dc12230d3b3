#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# What has no words in the headers is an error of scripts/gen-man: a parameter, a member, a constant. So is a
# function that no example calls. Each is planted in a copy.
# usage: gen_man_test.py TOP-OF-THE-SOURCES
import pathlib
import shutil
import subprocess
import sys
import tempfile

TOP = pathlib.Path(sys.argv[1])


def pages(change):
    """Runs gen-man on a copy of the headers in which `change` (old, new) has been made; returns its exit status and words."""
    with tempfile.TemporaryDirectory() as tmp:
        top = pathlib.Path(tmp)
        (top / "scripts").mkdir()
        (top / "man").mkdir()
        shutil.copy(TOP / "scripts/gen-man", top / "scripts")
        shutil.copytree(TOP / "include", top / "include")
        shutil.copytree(TOP / "examples/pages", top / "examples/pages")
        if change:
            files = [f for f in (top / "include/kolo/kolo.h", top / "examples/pages/collectives.c") if change[0] in f.read_text()]
            assert len(files) == 1 and files[0].read_text().count(change[0]) == 1, change
            files[0].write_text(files[0].read_text().replace(*change))
        p = subprocess.run([sys.executable, top / "scripts/gen-man", "--version", "0", top / "man"], capture_output=True, text=True)
        return p.returncode, p.stderr


code, words = pages(None)
assert code == 0 and words == "", (code, words)
for change, said in [
        ((" *     path      the name of a file\n", ""), "kolo_unique_id_save: the parameter path has no words"),
        (("size_t count, kolo_type_t type, kolo_op_t op,\n                              kolo_comm_t comm, void *stream);",
          "size_t count, kolo_type_t type, kolo_op_t op,\n                              kolo_comm_t comm, void *lane);"),
         "kolo_all_reduce: the parameter lane has no words"),
        (("int peer;       /* the rank that signals */", "int peer;"), "kolo_signal_wait_t: peer has no words"),
        (("#define KOLO_SIGNALS 16 /* numbers of signals from each rank */", "#define KOLO_SIGNALS 16\n"),
         "the constant: KOLO_SIGNALS has no words"),
        (("    TRY(kolo_all_gatherv(", "    TRY(gatherv("), "kolo_all_gatherv: no example in examples/pages calls it"),
]:
    code, words = pages(change)
    assert code != 0 and said in words, (change, code, words)
