#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
import sys

print("the package kolocomm was not built: no python3 with nanobind and numpy was found (scripts/install-deps test makes one from PyPI)")
sys.exit(77)
