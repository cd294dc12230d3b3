#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Every function of the public headers is used by the extension, or stands here with the reason why not; and every name of the
# package has words for help(). Usage: names_test.py FOLDER_OF_HEADERS FOLDER_OF_SOURCES
import pathlib
import re
import sys

import kolocomm

NOT_USED = {
    "kolo_comm_init_rank": "kolo_comm_init_rank_scalable() is the same for one id",
    "kolo_comm_init_devices": "the ranks of one process share its interpreter; a process for each GPU is the way in Python",
    "kolo_stream_call": "functions of Python on a stream's thread would hold the interpreter's lock there",
    "kolo_send_tag": "isend_tag() and wait()",
    "kolo_recv_tag": "irecv_tag() and wait()",
    "kolo_request_error": "kolo_request_wait() gives the same",
    "kolo_element_size": "sizes come from the arrays",
    "kolo_rendezvous_manager_create": "managers are those of servers",
    "kolo_rendezvous_manager_initialize": "managers are those of servers",
    "kolo_rendezvous_manager_destroy": "managers are those of servers",
    "kolo_rendezvous_receive": "kolo_rendezvous_receive_begin(), so that Ctrl-C is seen",
    "kolo_rendezvous_receive_call": "futures are awaited instead",
    "kolo_rendezvous_send_set": "send_set() sends one after the other",
}


def functions(header):
    text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"^[a-z][\w \*]*?\b(kolo_\w+)\(", text, flags=re.MULTILINE)


def main():
    headers, sources = (pathlib.Path(p) for p in sys.argv[1:3])
    code = "".join(p.read_text(encoding="utf-8") for p in sources.glob("*.cpp"))
    names = [n for h in sorted(headers.glob("*.h")) for n in functions(h)]
    assert len(names) > 150, names
    used = {n for n in names if re.search(rf"\b{n}\b", code)}
    wrong = [f"{n} is not to be had in Python" for n in names if n not in used and n not in NOT_USED]
    wrong += [f"{n} is used, and NOT_USED says it is not" for n in NOT_USED if n in used]
    wrong += [f"NOT_USED names {n}, which no header has" for n in NOT_USED if n not in names]
    for name in kolocomm.__all__:
        thing = getattr(kolocomm, name)
        inside = vars(thing).items() if isinstance(thing, type) else ()
        parts = [(name, thing)] + [(f"{name}.{k}", v) for k, v in inside if not k.startswith("_")]
        wrong += [f"help({n}) says nothing" for n, v in parts if callable(v) and not getattr(v, "__doc__", None)]
    print("\n".join(wrong) or f"{len(used)} of {len(names)} functions are used")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
