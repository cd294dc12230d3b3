/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the way from XML to the tree: machines that are not here, this machine, hostile files, the drawing.
 */
#include "base/test.h"
#include "topo/params.h"
#include "topo/test_data.h"
#include "topo/topo.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef KOLO_HAVE_HWLOC
#include <hwloc.h>
#endif

/* The path of a sample; valid until the next call. */
static const char *sample(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", kolo_topo_test_data, name);
    return path;
}

static int count_kind(const kolo_topo_t *topo, kolo_topo_kind_t kind)
{
    int n = 0;
    for (int i = 0; i < topo->count; i++) n += topo->nodes[i].kind == kind;
    return n;
}

static kolo_topo_t import_sample(const char *name)
{
    kolo_topo_t topo;
    if (kolo_topo_import_file(&topo, sample(name)) != KOLO_OK) fail_msg("%s", kolo_error_text());
    return topo;
}

static kolo_distance_t between(const kolo_topo_t *topo, kolo_topo_kind_t ka, int a, kolo_topo_kind_t kb, int b)
{
    int na = kolo_topo_find(topo, ka, a), nb = kolo_topo_find(topo, kb, b);
    assert_true(na >= 0 && nb >= 0);
    assert_int_equal(kolo_topo_distance(topo, na, nb), kolo_topo_distance(topo, nb, na));
    return kolo_topo_distance(topo, na, nb);
}

static void eight_gpu_machine_is_understood(void **state)
{
    (void)state;
    kolo_topo_t topo = import_sample("eight-gpu.xml");
    assert_int_equal(count_kind(&topo, KOLO_TOPO_SOCKET), 2);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_NUMA), 2);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_L3), 2);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_CORE), 16);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_PCI_SWITCH), 4);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_PCI_ROOT), 5);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_GPU), 8); /* the service processor's screen is none */
    assert_int_equal(count_kind(&topo, KOLO_TOPO_NIC), 9);
    const kolo_topo_node_t *nic = &topo.nodes[kolo_topo_find(&topo, KOLO_TOPO_NIC, 0)];
    assert_string_equal(nic->name, "mlx5_0");
    assert_string_equal(nic->netdev, "ib0");
    assert_string_equal(nic->bus_id, "0000:14:00.0");
    assert_int_equal(nic->link_mbps, 400000);
    assert_int_equal(nic->pci_mbps, 63015 * 8);
    assert_int_equal(topo.nodes[0].parent, -1);
    assert_string_equal(topo.nodes[0].name, "eight-gpu");
    const kolo_topo_node_t *numa = &topo.nodes[kolo_topo_find(&topo, KOLO_TOPO_NUMA, 1)];
    assert_true(numa->memory_bytes == (int64_t)1 << 40);
    assert_int_equal(numa->socket, 1);
    assert_int_equal(topo.nodes[numa->parent].kind, KOLO_TOPO_SOCKET);
    /* hyperthreads: CPUs 3 and 19 are one core, 8 is on the second socket */
    assert_int_equal(topo.core_of_cpu[3], topo.core_of_cpu[19]);
    assert_int_equal(topo.nodes[topo.core_of_cpu[8]].socket, 1);
    kolo_topo_fini(&topo);
    kolo_topo_fini(&topo);
}

static void distances_follow_the_tree(void **state)
{
    (void)state;
    kolo_topo_t topo = import_sample("eight-gpu.xml");
    assert_int_equal(between(&topo, KOLO_TOPO_GPU, 0, KOLO_TOPO_GPU, 0), KOLO_DISTANCE_SELF);
    assert_int_equal(between(&topo, KOLO_TOPO_GPU, 0, KOLO_TOPO_GPU, 1), KOLO_DISTANCE_PCI);
    assert_int_equal(between(&topo, KOLO_TOPO_GPU, 0, KOLO_TOPO_NIC, 1), KOLO_DISTANCE_PCI);
    assert_int_equal(between(&topo, KOLO_TOPO_GPU, 0, KOLO_TOPO_GPU, 2), KOLO_DISTANCE_HOSTBRIDGE);
    assert_int_equal(between(&topo, KOLO_TOPO_GPU, 0, KOLO_TOPO_GPU, 4), KOLO_DISTANCE_SOCKET);
    assert_int_equal(between(&topo, KOLO_TOPO_CORE, 0, KOLO_TOPO_CORE, 7), KOLO_DISTANCE_L3);
    assert_int_equal(between(&topo, KOLO_TOPO_CORE, 0, KOLO_TOPO_CORE, 8), KOLO_DISTANCE_SOCKET);
    assert_int_equal(between(&topo, KOLO_TOPO_CORE, 0, KOLO_TOPO_GPU, 3), KOLO_DISTANCE_NUMA);
    assert_int_equal(between(&topo, KOLO_TOPO_CORE, 0, KOLO_TOPO_GPU, 4), KOLO_DISTANCE_SOCKET);
    kolo_topo_fini(&topo);
}

static void uneven_machine_is_understood(void **state)
{
    (void)state;
    kolo_topo_t topo = import_sample("uneven.xml");
    assert_int_equal(count_kind(&topo, KOLO_TOPO_NUMA), 4);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_L3), 2);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_CORE), 9);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_GPU), 3);        /* an AMD accelerator is of PCI class 12 */
    assert_int_equal(count_kind(&topo, KOLO_TOPO_NIC), 4);        /* one of them on USB */
    assert_int_equal(count_kind(&topo, KOLO_TOPO_PCI_SWITCH), 1); /* two functions of one card are no switch */
    assert_int_equal(between(&topo, KOLO_TOPO_CORE, 0, KOLO_TOPO_CORE, 2), KOLO_DISTANCE_L3);
    assert_int_equal(between(&topo, KOLO_TOPO_CORE, 2, KOLO_TOPO_CORE, 3), KOLO_DISTANCE_HOSTBRIDGE);
    assert_int_equal(between(&topo, KOLO_TOPO_CORE, 5, KOLO_TOPO_CORE, 8), KOLO_DISTANCE_NUMA);     /* no L3 */
    assert_int_equal(between(&topo, KOLO_TOPO_GPU, 0, KOLO_TOPO_GPU, 1), KOLO_DISTANCE_HOSTBRIDGE); /* two ports */
    assert_int_equal(between(&topo, KOLO_TOPO_GPU, 2, KOLO_TOPO_NIC, 0), KOLO_DISTANCE_PCI);
    /* cores and devices of the second socket are at home in the first of its two memories */
    const kolo_topo_node_t *gpu = &topo.nodes[kolo_topo_find(&topo, KOLO_TOPO_GPU, 2)];
    assert_int_equal(gpu->numa, 2);
    assert_int_equal(gpu->socket, 1);
    const kolo_topo_node_t *lost = &topo.nodes[kolo_topo_find(&topo, KOLO_TOPO_NIC, 3)];
    assert_string_equal(lost->name, "rdmap0");
    assert_int_equal(lost->socket, -1);
    assert_int_equal(between(&topo, KOLO_TOPO_NIC, 3, KOLO_TOPO_GPU, 2), KOLO_DISTANCE_SOCKET);
    kolo_topo_fini(&topo);
}

static char *slurp(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *data = malloc(1 << 20);
    assert_non_null(data);
    *bytes = fread(data, 1, 1 << 20, file);
    fclose(file);
    return data;
}

/* Imports a copy without anything behind it, so that a sanitizer sees the first byte read too far. */
static kolo_status_t import_exact(const char *xml, size_t bytes)
{
    kolo_topo_t topo = {0};
    char *copy = malloc(bytes + !bytes);
    assert_non_null(copy);
    memcpy(copy, xml, bytes);
    kolo_status_t status = kolo_topo_import(&topo, copy, bytes, "test");
    free(copy);
    if (status == KOLO_OK)
        kolo_topo_fini(&topo);
    else
        assert_null(topo.nodes); /* outputs are set on success only */
    return status;
}

static void every_cut_off_file_is_refused(void **state)
{
    (void)state;
    size_t bytes, end;
    char *xml = slurp(sample("uneven.xml"), &bytes);
    for (end = bytes; xml[end - 1] != '>';) end--;
    assert_int_equal(import_exact(xml, end), KOLO_OK);
    for (size_t n = 0; n < end; n++) assert_int_equal(import_exact(xml, n), KOLO_ERR_PROTOCOL);
    free(xml);
}

static void hostile_files_are_refused_with_a_reason(void **state)
{
    (void)state;
#define TOPOLOGY "<topology version=\"2.0\">"
    static const struct {
        const char *xml, *reason;
    } cases[] = {
        {"", "no element"},
        {"hello", "no element"},
        {"<topology></topology>", "version 2"},
        {"<topology version=\"1.0\"></topology>", "version 2"},
        {"<machine version=\"2.0\"></machine>", "root element"},
        {TOPOLOGY "</topology>", "holds no object"},
        {TOPOLOGY "<object type=\"PU\" os_index=\"0\"/></topology>", "must be a Machine"},
        {TOPOLOGY "<object type=\"Machine\"/></topology>", "no PU"},
        {TOPOLOGY "<object type=\"Machine\"><object type=\"Machine\"/></object></topology>", "must be a Machine"},
        {TOPOLOGY "<object type=\"Machine\"/><object type=\"PU\"/></topology>", "must be a Machine"},
        {TOPOLOGY "<object/></topology>", "without a type"},
        {TOPOLOGY "<object type=\"Machine\"><info><object type=\"PU\"/></info></object></topology>", "inside"},
        {TOPOLOGY "<object type=\"Machine\" type=\"PU\"/></topology>", "twice"},
        {TOPOLOGY "<object type=\"Machine></object></topology>", "does not end"},
        {TOPOLOGY "<object type=Machine/></topology>", "quotes"},
        {TOPOLOGY "<object type=\"Machine\"os_index=\"0\"/></topology>", "expected a space"},
        {TOPOLOGY "</object></topology>", "does not match"},
        {TOPOLOGY "</topology></topology>", "without an element"},
        {TOPOLOGY "</topology>" TOPOLOGY "</topology>", "second root"},
        {TOPOLOGY "<!-- </topology>", "does not end"},
        {"<!DOCTYPE topology [<!ENTITY a \"b\">]>" TOPOLOGY "</topology>", "DOCTYPE"},
        {TOPOLOGY "<![CDATA[x]]></topology>", "followed by a name"},
    };
    for (size_t i = 0; i < KOLO_COUNTOF(cases); i++) {
        assert_int_equal(import_exact(cases[i].xml, strlen(cases[i].xml)), KOLO_ERR_PROTOCOL);
        if (!strstr(kolo_error_text(), cases[i].reason))
            fail_msg("\"%s\" does not say \"%s\"", kolo_error_text(), cases[i].reason);
    }
}

static void oversized_files_are_refused(void **state)
{
    (void)state;
    static const char head[] = TOPOLOGY "<object type=\"Machine\">", object[] = "<object type=\"PU\"/>";
    size_t most = 17 << 20, n = 0;
    char *xml = malloc(most);
    assert_non_null(xml);
    memset(xml, ' ', most);
    assert_int_equal(import_exact(xml, most), KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "more than"));
    n += (size_t)sprintf(xml, "%s", head);
    for (int i = 0; i < 70000; i++) n += (size_t)sprintf(xml + n, "%s", object);
    n += (size_t)sprintf(xml + n, "</object></topology>");
    assert_int_equal(import_exact(xml, n), KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "more than 65536 objects"));
    n = (size_t)sprintf(xml, "%s", head);
    for (int i = 0; i < 100; i++) n += (size_t)sprintf(xml + n, "<object type=\"Group\">");
    assert_int_equal(import_exact(xml, n), KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "nested too deeply"));
    n = (size_t)sprintf(xml, TOPOLOGY "<object ");
    for (int i = 0; i < 100; i++) n += (size_t)sprintf(xml + n, "a%d=\"\" ", i);
    assert_int_equal(import_exact(xml, n), KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "too many attributes"));
    free(xml);
}

static void huge_numbers_are_unknown_numbers(void **state)
{
    (void)state;
    static const char xml[] = TOPOLOGY
        "<object type=\"Machine\" os_index=\"-1\"><object type=\"NUMANode\" os_index=\"99999999999999999999\" "
        "local_memory=\"123456789012345678901\"/><object type=\"Core\" os_index=\"4294967296\"><object type=\"PU\" "
        "os_index=\"2147483647\"/></object><object type=\"PU\" os_index=\"5\"/></object></topology>";
    kolo_topo_t topo;
    assert_int_equal(kolo_topo_import(&topo, xml, strlen(xml), "test"), KOLO_OK);
    assert_int_equal(topo.ncpus, 6); /* no table for two thousand million CPUs */
    assert_int_equal(topo.nodes[1].os_index, -1);
    assert_int_equal(topo.nodes[1].memory_bytes, 0);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_CORE), 2);
    kolo_topo_fini(&topo);
}

static void texts_are_decoded_cut_and_harmless(void **state)
{
    (void)state;
    static const char xml[] =
        TOPOLOGY "<object type=\"Machine\"><info name=\"HostName\" value=\"a&lt;b&amp;&#10;\x1b[31m\"/>"
                 "<object type=\"PU\" os_index=\"0\"/><object type=\"OSDev\" osdev_type=\"2\" "
                 "name=\"0123456789012345678901234567890123456789012345678901234567890\"/></object></topology>";
    kolo_topo_t topo;
    assert_int_equal(kolo_topo_import(&topo, xml, strlen(xml), "test"), KOLO_OK);
    assert_string_equal(topo.nodes[0].name, "a<b&&#10;?[31m");
    const kolo_topo_node_t *nic = &topo.nodes[kolo_topo_find(&topo, KOLO_TOPO_NIC, 0)];
    assert_string_equal(nic->netdev, "012345678901234");
    kolo_topo_fini(&topo);
}

static void files_that_are_none_are_errors(void **state)
{
    (void)state;
    kolo_topo_t topo;
    char pipe_path[] = "/tmp/kolo-topo-XXXXXX";
    assert_int_equal(kolo_topo_import_file(&topo, sample("missing.xml")), KOLO_ERR_SYSTEM);
    assert_non_null(strstr(kolo_error_text(), "missing.xml"));
    assert_int_equal(kolo_topo_import_file(&topo, kolo_topo_test_data), KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(mkdtemp(pipe_path));
    char fifo[64];
    snprintf(fifo, sizeof fifo, "%s/fifo", pipe_path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(kolo_topo_import_file(&topo, fifo),
                     KOLO_ERR_INVALID_ARGUMENT); /* does not wait for a writer */
    unlink(fifo);
    rmdir(pipe_path);
}

/* The first look of the process is asked to dump what it finds. */
static void this_machine_can_be_loaded_and_dumped(void **state)
{
    (void)state;
    kolo_topo_t topo, dumped;
    char path[] = "/tmp/kolo-topo-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    kolo_topo_param_dump = path;
    kolo_status_t status = kolo_topo_load(&topo);
    kolo_topo_param_dump = NULL;
#ifdef KOLO_HAVE_HWLOC
    assert_int_equal(status, KOLO_OK);
    assert_int_equal(kolo_topo_import_file(&dumped, path), KOLO_OK);
    assert_int_equal(topo.count, dumped.count);
    kolo_topo_fini(&dumped);
#else
    (void)dumped;
    assert_int_equal(status, KOLO_ERR_UNSUPPORTED);
    assert_int_equal(kolo_topo_load(&topo), KOLO_OK);
#endif
    unlink(path);
    assert_true(count_kind(&topo, KOLO_TOPO_CORE) >= 1);
    assert_int_equal(topo.nodes[0].kind, KOLO_TOPO_MACHINE);
#ifdef KOLO_HAVE_HWLOC
    assert_non_null(strstr(topo.source, "hwloc"));
    assert_true(topo.core_of_cpu[sched_getcpu()] > 0);
#else
    assert_non_null(strstr(topo.source, "flat"));
    assert_int_equal(kolo_topo_export("/tmp/kolo-never-written.xml"), KOLO_ERR_UNSUPPORTED);
#endif
    kolo_topo_fini(&topo);
}

static void a_parameter_replaces_this_machine(void **state)
{
    (void)state;
    kolo_topo_t topo;
    kolo_topo_param_file = sample("eight-gpu.xml");
    kolo_status_t status = kolo_topo_load(&topo);
    kolo_topo_param_file = NULL;
    assert_int_equal(status, KOLO_OK);
    assert_int_equal(count_kind(&topo, KOLO_TOPO_GPU), 8);
    assert_non_null(strstr(topo.source, "file "));
    kolo_topo_fini(&topo);
}

#ifdef KOLO_HAVE_HWLOC
static void an_exported_machine_is_the_same_machine(void **state)
{
    (void)state;
    kolo_topo_t here, there;
    char path[] = "/tmp/kolo-topo-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(kolo_topo_load(&here), KOLO_OK);
    assert_int_equal(kolo_topo_export(path), KOLO_OK);
    assert_int_equal(kolo_topo_import_file(&there, path), KOLO_OK);
    assert_int_equal(here.count, there.count);
    for (int i = 0; i < here.count; i++) /* memory may be counted anew between two looks: allow it to move */
        there.nodes[i].memory_bytes = here.nodes[i].memory_bytes;
    assert_memory_equal(here.nodes, there.nodes, (size_t)here.count * sizeof *here.nodes);
    assert_int_equal(here.ncpus, there.ncpus);
    kolo_topo_fini(&there);
    kolo_topo_fini(&here);
    unlink(path);
    assert_int_equal(kolo_topo_export("/nonexistent-directory/x.xml"), KOLO_ERR_SYSTEM);
}

/* What hwloc itself makes of our samples agrees with what we make of them. */
static void hwloc_accepts_the_samples_and_agrees(void **state)
{
    (void)state;
    static const char *const samples[] = {"eight-gpu.xml", "uneven.xml"};
    for (size_t i = 0; i < KOLO_COUNTOF(samples); i++) {
        hwloc_topology_t hw;
        kolo_topo_t topo = import_sample(samples[i]);
        size_t bytes;
        char *xml = slurp(sample(samples[i]), &bytes), *tree;
        assert_true(bytes < 1 << 20);
        xml[bytes] = '\0';
        tree = strstr(xml, "<topology "); /* hwloc without its libxml plug-in reads no comment before that */
        assert_non_null(tree);
        assert_int_equal(hwloc_topology_init(&hw), 0);
        hwloc_topology_set_io_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_ALL);
        assert_int_equal(hwloc_topology_set_xmlbuffer(hw, tree, (int)strlen(tree) + 1), 0);
        assert_int_equal(hwloc_topology_load(hw), 0);
        assert_int_equal(hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_PACKAGE), count_kind(&topo, KOLO_TOPO_SOCKET));
        assert_int_equal(hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_NUMANODE), count_kind(&topo, KOLO_TOPO_NUMA));
        assert_int_equal(hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_L3CACHE), count_kind(&topo, KOLO_TOPO_L3));
        assert_int_equal(hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_CORE), count_kind(&topo, KOLO_TOPO_CORE));
        for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(hw, HWLOC_OBJ_PU, pu));) {
            hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(hw, HWLOC_OBJ_CORE, pu);
            hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(hw, HWLOC_OBJ_PACKAGE, pu);
            const kolo_topo_node_t *node = &topo.nodes[topo.core_of_cpu[pu->os_index]];
            assert_int_equal(node->index, core->logical_index);
            assert_int_equal(node->socket, package->logical_index);
        }
        hwloc_topology_destroy(hw);
        kolo_topo_fini(&topo);
        free(xml);
    }
}
#endif

static void the_drawing_shows_everything(void **state)
{
    (void)state;
    kolo_topo_t topo = import_sample("eight-gpu.xml");
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    kolo_topo_print(&topo, out);
    fclose(out);
    static const char *const lines[] = {
        ("machine eight-gpu\n├─ socket 0 Example server processor\n│  └─ NUMA 0 1.0 TiB\n│     ├─ L3 0 105 MiB\n"
         "│     │  └─ cores 0-7 cpus 0-7,16-23\n"),
        "GPU 0 0000:13:00.0 GH100 [H100 SXM5 80GB] PCI 504 Gb/s\n",
        "NIC 0 0000:14:00.0 mlx5_0 (ib0) link 400 Gb/s",
        "└─ socket 1",
        "\nGPU7   socket",
        "distances"};
    for (size_t i = 0; i < KOLO_COUNTOF(lines); i++)
        if (!strstr(text, lines[i])) fail_msg("no \"%s\" in\n%s", lines[i], text);
    free(text);
    kolo_topo_fini(&topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_gpu_machine_is_understood),
        cmocka_unit_test(distances_follow_the_tree),
        cmocka_unit_test(uneven_machine_is_understood),
        cmocka_unit_test(every_cut_off_file_is_refused),
        cmocka_unit_test(hostile_files_are_refused_with_a_reason),
        cmocka_unit_test(oversized_files_are_refused),
        cmocka_unit_test(huge_numbers_are_unknown_numbers),
        cmocka_unit_test(texts_are_decoded_cut_and_harmless),
        cmocka_unit_test(files_that_are_none_are_errors),
        cmocka_unit_test(this_machine_can_be_loaded_and_dumped),
        cmocka_unit_test(a_parameter_replaces_this_machine),
#ifdef KOLO_HAVE_HWLOC
        cmocka_unit_test(an_exported_machine_is_the_same_machine),
        cmocka_unit_test(hwloc_accepts_the_samples_and_agrees),
#endif
        cmocka_unit_test(the_drawing_shows_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
