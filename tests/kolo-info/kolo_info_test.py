#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolo-info as its users meet it. usage: kolo_info_test.py KOLO-INFO CASE | none --list
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

KOLO_INFO = sys.argv[1]
DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "topo"
MISSING = 3  # exit status: not in this build


def run(*args, **env):
    """Returns exit status, stdout and stderr; the environment holds no KOLO_ name but those given."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
    p = subprocess.run([KOLO_INFO, *args], env={**clean, **env}, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def good(*args, **env):
    status, out, err = run(*args, **env)
    assert status == 0 and err == "", f"{args}: status {status}, stderr {err!r}"
    return out


def has(text, *parts):
    for part in parts:
        assert part in text, f"no {part!r} in {text!r}"


def case_overview_tells_build_wires_and_limits():
    out = good()
    has(out, "Kolo ", "compiler", "sanitizers", "hwloc", "libsodium", "local", "cma", "shm", "tcp", "descriptors", "memlock")
    assert re.search(r"cores +\d+ usable of \d+ online", out), out
    assert re.search(r"libsodium +(\d+\.\d+.* in|out):", out) and re.search(r"hwloc +(\d+\.\d+ in|out):", out), out
    for part in ("protobuf-c", "microhttpd", "MPI", "autotune"):
        assert re.search(rf"\n  {part} +(.* )?(in|out): ", out), (part, out)
    assert re.search(r"\n  0 of \d+\n", out), out


def case_overview_tells_machine_and_parameters_that_are_set():
    out = good(KOLO_TOPO_FILE=str(DATA / "eight-gpu.xml"), KOLO_SLOT_BYTES="64K")
    assert re.search(r"\n  eight-gpu, 2 \w+.*, 8 \w+", out), out
    has(out, "  KOLO_TOPO_FILE = ", "  KOLO_SLOT_BYTES = ")
    assert re.search(r"\n  2 of \d+\n", out), out


def case_overview_names_disabled_wires():
    out = good(KOLO_SHM_DISABLE="1")
    assert [l.split()[0] for l in out.splitlines() if "(disabled by parameter)" in l] == ["shm"], out
    assert [l.split()[0] for l in out.splitlines() if "(disabled with shm" in l] == ["cma"], out


def case_version_and_help():
    assert re.fullmatch(r"kolo-info \d+\.\d+\.\d+\n", good("--version"))
    has(good("--help"), "usage:", "--params", "--topo", "--explain", "--memory", "--nodes")


def case_wrong_arguments_are_named():
    for args, why in (
        (["--bogus"], "bogus"),
        (["word"], "unexpected argument: word"),
        (["--json"], "--json goes with --params"),
        (["--params", "--topo"], "exclude each other"),
        (["--topo", "word"], "unexpected argument: word"),
        (["--nodes", "2"], "--nodes goes with"),
        (["--nodes"], "requires an argument"),
        (["--memory"], "--memory needs"),
        (["--memory", "4", "--nodes", "none"], "--nodes"),
        (["--memory", "4", "--nodes", "0"], "--nodes"),
        (["--explain", "all_reduce", "1M"], "--explain needs COLL SIZE RANKS"),
        (["--explain", "all_reduce", "1M", "4", "5"], "--explain needs COLL SIZE RANKS"),
    ):
        status, out, err = run(*args)
        assert status == 2, f"{args}: status {status}"
        assert out == "" and why in err, f"{args}: stdout {out!r}, stderr {err!r}"


def case_unknown_variables_are_warned_of():
    for args in (("--params",), ("--explain", "all_reduce", "1M", "4")):
        status, _, err = run(*args, KOLO_ALOG="ring", KOLO_RANK="0")
        assert status == 0 and "unknown parameter KOLO_ALOG" in err and "KOLO_RANK" not in err, (status, err)


def case_params_as_json_and_text_agree():
    rows = json.loads(good("--params", "--json"))
    text = good("--params")
    assert len(rows) > 5 and len({r["key"] for r in rows}) == len(rows), "a key is missing or there twice"
    for row in rows:
        own = row["key"].startswith("KOLO_")  # the others are what launchers and the driver read, perhaps set around this test
        assert (own or row["module"] in ("job", "cuda")) and row["help"] and row["module"], row
        assert (row["source"] == "default" or not own) and row["kind"] in ("int", "size", "bool", "text", "file", "enum"), row
        assert ("min" in row) == (row["kind"] in ("int", "size")), row
        assert ("choices" in row) == (row["kind"] == "enum"), row
        has(text, row["key"] + " = ", row["help"])


def case_params_say_where_a_value_came_from():
    odd = 'x"y\\z\x01\u00e9'
    rows = {r["key"]: r for r in json.loads(good("--params", "--json", KOLO_TOPO_FILE=odd, KOLO_SHM_DISABLE="yes"))}
    assert rows["KOLO_SHM_DISABLE"]["value"] == "1" and rows["KOLO_SHM_DISABLE"]["source"] == "environment"
    assert rows["KOLO_SHM_DISABLE"]["default"] == "0"
    got = rows["KOLO_TOPO_FILE"]["value"].encode("latin-1").decode()  # bytes that are not ASCII come as they are
    assert got == odd, f"{got!r}"
    assert rows["KOLO_CMA_DISABLE"]["source"] == "default"


def case_bad_parameter_fails_but_still_lists():
    status, out, err = run("--params", "--json", KOLO_CMA_DISABLE="perhaps")
    assert status == 1, status
    has(err, "KOLO_CMA_DISABLE", "perhaps")
    assert {r["key"]: r for r in json.loads(out)}["KOLO_CMA_DISABLE"]["value"] == "0"


def case_misspelt_names_are_errors():
    for key, value, allowed in (
        ("KOLO_ALGO", "rign", "ring"),
        ("KOLO_ALGO", "ring,all_reduce=tre", "tree"),
        ("KOLO_ALGO", "all_reduce=bruck", "halving_doubling"),  # there is a bruck, but none for all_reduce
        ("KOLO_ALGO", "allreduce=ring", "all_reduce"),
        ("KOLO_ALGO", "all_reduce=", "ring"),
        ("KOLO_LOG", "verbose", "none|error|warn|info|debug|trace"),
        ("KOLO_LOG", "info,wire=loud", "ROOM=LEVEL"),
        ("KOLO_ENGINE_BACKENDS", "nosuch", "hierarchical"),
        ("KOLO_ENGINE_BACKENDS", "kolo;all_gather=nosuch", "hierarchical"),
        ("KOLO_SPINS", "-2", "-1"),
    ):
        status, out, err = run("--params", "--json", **{key: value})
        assert status == 1, (key, value, status)
        has(err, key, value, allowed)
        row = {r["key"]: r for r in json.loads(out)}[key]
        assert row["value"] == row["default"] or (row["value"], row["default"]) == (None, None), row
    for key, value in (("KOLO_ALGO", ""), ("KOLO_ALGO", "bruck"), ("KOLO_ALGO", "ring,broadcast=tree"), ("KOLO_LOG", "DEBUG"), ("KOLO_LOG", "info,wire=debug"),
                       ("KOLO_ENGINE_BACKENDS", "mpi,kolo;broadcast=kolo"), ("KOLO_SPINS", "0")):
        good("--params", **{key: value})


def case_topology_of_a_file_is_drawn():
    out = good("--topo", KOLO_TOPO_FILE=str(DATA / "eight-gpu.xml"))
    has(out, "machine eight-gpu", "socket 1", "GPU 7", "NIC 8", "distances", "hostbridge")


def case_lanes_have_rings_and_cards():
    out = good("--topo", KOLO_TOPO_FILE=str(DATA / "eight-gpu.xml"))
    has(out, "lanes of 8 ranks, one for each GPU", "lane 0  ring GPU0", "NIC 0 (ib0)", "lane 7  ring GPU6", "NIC 8 (ib7)")
    assert "lane 8" not in out and "NIC 4 (" not in out, out  # the slow card has no lane


def predict(call, fabric):
    return good("--explain", *call.split(), "--fabric", str(DATA / "eight-gpu.xml") + fabric).split("predicted:")[1]


def case_collectives_on_many_machines_are_predicted():
    out = predict("all_reduce 32M 64 --nodes 8", ",rails")
    has(out, "8 nodes of 8 cards with 50.0 GB/s each, all cards of a rail", "ring on 8 lanes", "on this fabric: hierarchical,",
        "busiest card carries")
    rows = {r[0]: float(r[1]) for r in re.findall(r"^  (\w+(?: on \d lanes?)?) +([0-9.]+) us", out, re.M)}
    assert min(rows, key=rows.get) == "hierarchical", rows
    crowded, free = (predict("all_reduce 32M 64 --nodes 8", ",pod=2" + over) for over in (",over=64", ""))
    has(crowded, "all cards of a pod", "pods of 2 nodes, 64.0:1 above")
    times = [float(re.search(r"^  direct +([0-9.]+) us", text, re.M)[1]) for text in (crowded, free)]
    assert times[0] > 1.2 * times[1], times  # it sends most between leaf switches


def case_a_fabric_without_sense_is_an_error():
    for fabric, words in ((",rials", "'rials' is none of these"), (",over=0.5", "'over=0.5'"), (",pod=x", "'pod=x'")):
        status, out, err = run("--explain", "all_reduce", "1M", "16", "--nodes", "2", "--fabric", str(DATA / "eight-gpu.xml") + fabric)
        assert status == 2, (fabric, status)
        has(err, words)
    status, out, err = run("--explain", "all_reduce", "1M", "15", "--nodes", "2", "--fabric", str(DATA / "eight-gpu.xml"))
    assert status == 2, status
    has(err, "not spread evenly")


def explain_gpu(*call):
    out = good("--explain", *call, "--gpu")
    return out, float(re.search(r"predicted: ([\d.]+) us", out)[1])


def case_a_broadcast_leaves_a_gpu_once():
    two, four = explain_gpu("broadcast", "1G", "2")[1], explain_gpu("broadcast", "1G", "4")[1]
    assert two < four < 1.2 * two, (two, four)  # loads are slower than stores
    assert explain_gpu("broadcast", "1G", "8")[1] < 1.05 * four


def case_short_operations_on_gpus_start_few_threads():
    has(explain_gpu("all_reduce", "8", "2")[0], "lines, 1 blocks of 32 threads")
    has(explain_gpu("all_reduce", "1G", "2")[0], " blocks of 512 threads")


def eight_gpus():
    if not os.environ.get("FAKE_NVML"):
        sys.exit(77)
    buses = ["0000:%02X:00.0" % bus for bus in (0x13, 0x15, 0x43, 0x45, 0x93, 0x95, 0xc3, 0xc5)]
    return {"KOLO_TOPO_FILE": str(DATA / "eight-gpu.xml"), "KOLO_NVML_LIBRARY": os.environ["FAKE_NVML"],
            "FAKE_NVML_GPUS": ",".join(buses)}


def nvml_of(links):
    return good("--topo", FAKE_NVML_LINKS=links, **eight_gpus())


def case_nvlinks_to_switches_are_drawn():
    out = nvml_of("switch")
    has(out, "GPU 7 0000:c5:00.0 Fake GPU 7 PCI 504 Gb/s NVLink 18 to switches", "GPU0   self       nvlink     nvlink")


def case_nvlinks_between_gpus_are_drawn():
    out = nvml_of("pairs")
    has(out, "Fake GPU 0 PCI 504 Gb/s NVLink 4 to GPU 1", "Fake GPU 7 PCI 504 Gb/s NVLink 4 to GPU 6",
        "GPU0   self       nvlink     hostbridge")


def case_nvml_runs_only_while_links_are_looked_for():
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        gpus = eight_gpus() | {"FAKE_NVML_LOG": str(log)}
        p = subprocess.run([os.environ["KOLORUN_PROGRAM"], "-n", "2", os.environ["MEMORY_USE"]], env=os.environ | gpus,
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=50)
        assert p.returncode in (0, 77), p
        assert not log.exists(), "a job without GPUs started NVML"
        good("--topo", **gpus)
        assert log.read_text().split() == ["start", "end"], log.read_text()


def case_topology_of_this_machine_is_drawn():
    has(good("--topo"), "source: ", "machine ", "core")


def case_bad_topology_file_is_an_error():
    status, out, err = run("--topo", KOLO_TOPO_FILE="/nonexistent/machine.xml")
    assert status == 1 and out == "", (status, out)
    has(err, "/nonexistent/machine.xml", "No such file")
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as f:
        f.write("<topology version=\"2.0\">\n<object")
        f.flush()
        status, out, err = run("--topo", KOLO_TOPO_FILE=f.name)
    assert status == 1 and out == "", (status, out)
    has(err, "line 2")


def case_explain_and_memory():
    status, out, err = run("--explain", "all_reduce", "1M", "4")
    if status == MISSING:
        has(err, "not in this build")
        return
    assert status == 0 and err == "", err
    has(out, "all_reduce of 262144 elements of 4 bytes on 4 ranks of 1 host")
    rule = re.search(r"\n  measured rule (\d+) of (\d+): all_reduce of \d+ to \d+ ranks on one host.*, from \d+ bytes on.*: (\w+)\n", out)
    assert rule and 1 <= int(rule[1]) <= int(rule[2]) and f"chosen: {rule[3]}," in out, out
    assert re.search(r"\n  the cost model (would choose|does not know) ", out), out
    has(out, "on GPUs of one host: kernels made for the collective")
    has(good("--explain", "all_reduce", "1M", "4", KOLO_ALGO="ring"), "chosen: ring", "KOLO_ALGO comes before", "on GPUs of one host: the ring plan")
    has(good("--explain", "all_reduce", "1M", "4", "--nodes", "2"), "no measured rule", "the cost model would choose the same")
    for name in ("allreduce", "all-reduce", "reducescatter"):
        has(good("--explain", name, "1M", "4"), "all_reduce of 262144 elements" if name[0] == "a" else "reduce_scatter of 65536 elements")
    has(good("--explain", "broadcast", "64", "6", "--nodes", "3"), "6 ranks of 3 host")
    has(good("--memory", "8", "--nodes", "2"), "connections", "all of them", "memory per rank: ")
    for args, why in ((["--explain", "all_reduces", "1M", "4"], "all_reduces"),
                      (["--explain", "all_reduce", "1Q", "4"], "1Q"),
                      (["--explain", "all_reduce", "1M", "0"], "RANKS"),
                      (["--memory", "4", "--nodes", "5"], "5 nodes for 4 ranks"),
                      (["--memory", "-3"], "")):
        status, out, err = run(*args)
        assert status == 2 and why in err and out == "", (args, status, out, err)


def case_memory_of_a_job_is_as_told():
    for ranks in ("4", "2", "3"):
        told = int(re.search(r"memory per rank: (\d+) bytes", good("--memory", ranks))[1])
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
        p = subprocess.run([os.environ["KOLORUN_PROGRAM"], "-n", ranks, "--no-tag", "--timeout", "40", os.environ["MEMORY_USE"]],
                           env=clean, stdin=subprocess.DEVNULL, capture_output=True, timeout=50)
        if p.returncode == 77:
            print("the kernel does not tell Pss_Anon and Pss_Shmem")
            sys.exit(77)
        assert p.returncode == 0, p
        used = [int(n) for n in p.stdout.split()]
        print(f"{ranks} ranks: told {told}, used {used}")
        # with two ranks much goes by reference, and slots that are counted stay untouched
        least = 0.5 if ranks == "2" else 0.8
        assert len(used) == int(ranks) and all(least * told <= n <= 1.2 * told for n in used), (ranks, told, used)
        assert max(used) < 8 << 20, used


def case_descriptors_of_a_job_are_as_told():
    over_tcp = {"KOLO_CMA_DISABLE": "1", "KOLO_SHM_DISABLE": "1"}
    far = "KOLO_HOST_ID=h$KOLO_RANK exec $0 descriptors"
    words = (r"descriptors per rank: at most (\d+) of a communicator where ranks of a host share memory, (\d+) where all goes over "
             r"TCP \(KOLO_TCP_SOCKETS=1\); (\d+) and (\d+) that all communicators share")
    for ranks in ("2", "4"):
        out, apart = good("--memory", ranks), good("--memory", ranks, "--nodes", ranks)
        shared, tcp, once, once_tcp = (int(n) for n in re.search(words, out).groups())
        away, _, once_away, _ = (int(n) for n in re.search(words, apart).groups())
        has(out, "(ulimit -Hn): room for")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
        program = os.environ["MEMORY_USE"]
        for each, all_share, env, args in ((shared, once, {}, [program, "descriptors"]), (tcp, once_tcp, over_tcp, [program, "descriptors"]),
                                           (away, once_away, {}, ["sh", "-c", far, program])):
            p = subprocess.run([os.environ["KOLORUN_PROGRAM"], "-n", ranks, "--no-tag", "--timeout", "40", *args],
                               env={**clean, **env}, stdin=subprocess.DEVNULL, capture_output=True, timeout=50)
            assert p.returncode == 0, p
            used = [tuple(map(int, line.split())) for line in p.stdout.splitlines()]
            print(f"{ranks} ranks: told {all_share} and {each} each, used {used}")
            told = all_share + each
            assert len(used) == int(ranks), used
            assert all(0.75 * told - 2 <= first <= told + 2 and 0.75 * each <= more <= each + 2 for first, more in used), (ranks, told, used)


def case_every_parameter_of_the_library_is_there():
    keys = {r["key"] for r in json.loads(good("--params", "--json"))}
    source = pathlib.Path(__file__).resolve().parent.parent.parent / "src"
    files = [f for f in source.glob("**/*params*.c") if not f.stem.endswith(("_test", "_fuzz"))]
    rows = {k for f in files for k in re.findall(r'\{"(KOLO_[A-Z0-9_]+)", KOLO_PARAM_', f.read_text())}
    assert len(rows) > 20 and rows <= keys, rows - keys


def case_full_disk_is_an_error():
    with open("/dev/full", "w") as full:
        p = subprocess.run([KOLO_INFO, "--params"], stdout=full, stderr=subprocess.PIPE, timeout=30)
    assert p.returncode == 1 and b"No space" in p.stderr, p


CASES = {name[len("case_"):]: f for name, f in list(globals().items()) if name.startswith("case_")}
if sys.argv[2] == "--list":
    print("\n".join(CASES))
else:
    CASES[sys.argv[2]]()
