#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# python -m kolocomm.nccl: prints where the package's libnccl.so.2 is, or runs a program that finds it before any other. Needs no GPU.
import ctypes
import os
import subprocess
import sys
import unittest

SAYS_KOLO = ("import ctypes; lib = ctypes.CDLL(None); id = ctypes.create_string_buffer(128); "
             "assert lib.ncclGetUniqueId(id) == 0; print(id.raw[:7].decode())")
SUM = """
import ctypes, os
class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_byte * 128)]
lib, id, comms = ctypes.CDLL(None), Id(), [ctypes.c_void_p() for _ in range(3)]
assert lib.ncclCommInitAll(comms_ := (ctypes.c_void_p * 3)(), 3, None) == 0
values = [(ctypes.c_float * 4)(*[r + 1] * 4) for r in range(3)]
assert lib.ncclGroupStart() == 0
for r in range(3): assert lib.ncclAllReduce(values[r], values[r], ctypes.c_size_t(4), 7, 0, ctypes.c_void_p(comms_[r]), None) == 0
assert lib.ncclGroupEnd() == 0
print([v[3] for v in values])
"""


def run(*args, **environ):
    return subprocess.run([sys.executable, "-m", "kolocomm.nccl", *args], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "KOLO_NCCL_CPU": "1", **environ})


class PreloadTest(unittest.TestCase):
    def test_without_a_program_the_path_is_printed(self):
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        lib = ctypes.CDLL(done.stdout.strip())
        version = ctypes.c_int()
        self.assertEqual(lib.ncclGetVersion(ctypes.byref(version)), 0)
        self.assertGreaterEqual(version.value, 23007)

    def test_a_program_finds_kolo(self):
        done = run(sys.executable, "-c", SAYS_KOLO)
        self.assertEqual(done.stdout, "kolo-id\n", done.stderr)

    def test_three_ranks_of_a_program_add(self):
        done = run(sys.executable, "-c", SUM)
        self.assertEqual(done.stdout, "[6.0, 6.0, 6.0]\n", done.stderr)

    def test_what_was_to_be_loaded_before_still_is(self):
        done = run(sys.executable, "-c", "import os; print(os.environ['LD_PRELOAD'])", LD_PRELOAD="libm.so.6")
        self.assertTrue(done.stdout.strip().endswith("libnccl.so.2:libm.so.6"), done.stdout + done.stderr)

    def test_a_program_that_is_not_there_is_named(self):
        done = run("no-such-program")
        self.assertIn("no-such-program: there is no such program", done.stderr)
        self.assertNotEqual(done.returncode, 0)

    def test_an_option_prints_how_it_is_called(self):
        self.assertIn("LD_PRELOAD=$(python -m kolocomm.nccl)", run("--help").stderr)


if __name__ == "__main__":
    unittest.main()
