# SPDX-License-Identifier: Apache-2.0
"""The command kolorun of an installed package: starts ranks here or over ssh. See kolorun --help."""
import os
import pathlib
import shutil
import sys


def find():
    """The launcher of this package, or the one along PATH."""
    mine = pathlib.Path(__file__).with_name("bin") / "kolorun"
    return str(mine) if mine.is_file() else os.environ.get("KOLORUN") or shutil.which("kolorun")


def main():
    path = find()
    if not path:
        sys.exit("kolorun is not there: neither in the package kolocomm nor along PATH")
    os.execv(path, ["kolorun", *sys.argv[1:]])


if __name__ == "__main__":
    main()
