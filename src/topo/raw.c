/* SPDX-License-Identifier: Apache-2.0
 *
 * First half of the import: XML elements to raw objects, linked as they are nested, with GPUs and NICs recognised
 * by their PCI class and their OS devices. Sets of CPUs, distances and attributes of memory are not read: nesting
 * says all that the tree needs, and what is not read cannot contradict it.
 */
#include "topo/raw.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { OSDEV_NET = 2, OSDEV_OPENFABRICS = 3 }; /* numbers of hwloc's file format */
enum { VENDOR_NVIDIA = 0x10de, VENDOR_AMD = 0x1002 };
enum { CLASS_NETWORK = 0x02, CLASS_DISPLAY = 0x03, CLASS_ACCELERATOR = 0x12, CLASS_OLD_INFINIBAND = 0x0c06 };

static kolo_raw_type_t type_of(const kolo_xml_text_t *text)
{
    static const struct {
        const char *word;
        kolo_raw_type_t type;
    } types[] = {{"Machine", KOLO_RAW_MACHINE}, {"Package", KOLO_RAW_PACKAGE},
                 {"NUMANode", KOLO_RAW_NUMA},   {"MemCache", KOLO_RAW_MEMCACHE},
                 {"L3Cache", KOLO_RAW_L3},      {"Core", KOLO_RAW_CORE},
                 {"PU", KOLO_RAW_PU},           {"Bridge", KOLO_RAW_BRIDGE},
                 {"PCIDev", KOLO_RAW_PCI},      {"OSDev", KOLO_RAW_OSDEV}};
    for (size_t i = 0; i < KOLO_COUNTOF(types); i++)
        if (kolo_xml_is(*text, types[i].word)) return types[i].type;
    return KOLO_RAW_OTHER;
}

/* Reads hexadecimal digits from *at on. */
static unsigned read_hex(kolo_xml_text_t text, size_t *at)
{
    unsigned value = 0;
    for (int digits = 0; *at < text.bytes && digits < 4; digits++, (*at)++) {
        char c = text.at[*at];
        if (c >= '0' && c <= '9')
            value = value * 16 + (unsigned)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value = value * 16 + (unsigned)((c | 0x20) - 'a' + 10);
        else
            break;
    }
    return value;
}

/* Reads pci_type="0302 [10de:2330] [10de:16c1] a1": class, vendor, device, then what is not needed. */
static void read_pci_type(kolo_raw_object_t *object, kolo_xml_text_t text)
{
    size_t at = 0;
    object->pci_class = read_hex(text, &at);
    if (at + 2 > text.bytes || text.at[at] != ' ' || text.at[at + 1] != '[') return;
    at += 2;
    object->pci_vendor = read_hex(text, &at);
    if (at >= text.bytes || text.at[at] != ':') return;
    at++;
    object->pci_device = read_hex(text, &at);
}

/* Reads pci_link_speed="31.507692", in GB/s. */
static int64_t read_pci_speed(const kolo_xml_text_t *text)
{
    int64_t thousandths = 0;
    int decimals = -1;
    for (size_t i = 0; text && i < text->bytes && decimals < 3; i++) {
        char c = text->at[i];
        if (c == '.' && decimals < 0) {
            decimals = 0;
        } else if (c >= '0' && c <= '9' && thousandths < 1000000000) {
            thousandths = thousandths * 10 + (c - '0');
            decimals += decimals >= 0;
        } else {
            return 0;
        }
    }
    for (decimals = KOLO_MAX(decimals, 0); decimals < 3; decimals++) thousandths *= 10;
    return thousandths * 8;
}

static void read_attributes(kolo_raw_object_t *object, const kolo_xml_t *xml)
{
    const kolo_xml_text_t *text;
    object->os_index = (int)kolo_xml_number(xml, "os_index", INT32_MAX, -1);
    if ((text = kolo_xml_attr(xml, "name"))) object->name = *text;
    if ((text = kolo_xml_attr(xml, "pci_busid"))) object->bus = *text;
    if ((text = kolo_xml_attr(xml, "pci_type"))) read_pci_type(object, *text);
    if ((text = kolo_xml_attr(xml, "bridge_type"))) object->host_bridge = text->bytes && text->at[0] == '0';
    if (object->host_bridge && (text = kolo_xml_attr(xml, "bridge_pci"))) object->bus = *text;
    object->pci_mbps = read_pci_speed(kolo_xml_attr(xml, "pci_link_speed"));
    object->osdev_type = (int)kolo_xml_number(xml, "osdev_type", INT32_MAX, -1);
    const char *bytes = object->type == KOLO_RAW_NUMA ? "local_memory" : "cache_size";
    object->bytes = kolo_xml_number(xml, bytes, INT64_MAX, 0);
}

static void read_info(kolo_raw_object_t *object, const kolo_xml_t *xml)
{
    const kolo_xml_text_t *name = kolo_xml_attr(xml, "name"), *value = kolo_xml_attr(xml, "value");
    if (!name || !value) return;
    const char *label = object->type == KOLO_RAW_MACHINE   ? "HostName"
                        : object->type == KOLO_RAW_PACKAGE ? "CPUModel"
                                                           : "PCIDevice";
    if (kolo_xml_is(*name, label)) object->label = *value;
    if (kolo_xml_is(*name, KOLO_TOPO_INFO_SPEED)) object->link_mbps = kolo_xml_number(xml, "value", INT32_MAX, 0);
}

static kolo_status_t add_object(kolo_raw_t *raw, const kolo_xml_t *xml, int parent)
{
    const kolo_xml_text_t *type = kolo_xml_attr(xml, "type");
    if (!type) return kolo_xml_fail(xml, "an object without a type");
    if (raw->count == KOLO_TOPO_MAX_OBJECTS) return kolo_xml_fail(xml, "more than 65536 objects");
    if (raw->count == raw->capacity) {
        int capacity = raw->capacity ? raw->capacity * 2 : 256;
        kolo_raw_object_t *more = realloc(raw->objects, (size_t)capacity * sizeof *more);
        if (!more) return kolo_fail(KOLO_ERR_NO_MEMORY, "topology: no memory for %d objects", capacity);
        raw->objects = more;
        raw->capacity = capacity;
    }
    int me = raw->count++;
    kolo_raw_object_t *object = &raw->objects[me];
    *object = (kolo_raw_object_t){.type = type_of(type), .parent = parent, .child = -1, .last = -1, .next = -1};
    read_attributes(object, xml);
    if ((me == 0) != (object->type == KOLO_RAW_MACHINE) || (me == 0) != (parent < 0))
        return kolo_xml_fail(xml, "the outermost object, and only that, must be a Machine");
    if (parent >= 0) {
        int before = raw->objects[parent].last;
        if (before >= 0)
            raw->objects[before].next = me;
        else
            raw->objects[parent].child = me;
        raw->objects[parent].last = me;
    }
    return KOLO_OK;
}

static bool is_nic_osdev(const kolo_raw_object_t *object)
{
    return object->type == KOLO_RAW_OSDEV &&
           (object->osdev_type == OSDEV_NET || object->osdev_type == OSDEV_OPENFABRICS);
}

static kolo_raw_device_t device_by_class(const kolo_raw_object_t *object)
{
    unsigned base = object->pci_class >> 8;
    bool maker = object->pci_vendor == VENDOR_NVIDIA || object->pci_vendor == VENDOR_AMD;
    if (maker && (base == CLASS_DISPLAY || base == CLASS_ACCELERATOR)) return KOLO_RAW_GPU;
    if (base == CLASS_NETWORK || object->pci_class == CLASS_OLD_INFINIBAND) return KOLO_RAW_NIC;
    return KOLO_RAW_NO_DEVICE;
}

/* Tells whether the next sibling is another function of the same card (all of the bus number but the digit behind
 * the dot). */
static bool same_card(const kolo_raw_t *raw, const kolo_raw_object_t *object)
{
    const kolo_raw_object_t *next = object->next >= 0 ? &raw->objects[object->next] : NULL;
    if (!next || next->devices == 0 || object->bus.bytes < 3 || object->bus.bytes != next->bus.bytes) return false;
    return memcmp(object->bus.at, next->bus.at, object->bus.bytes - 2) == 0;
}

/* Finds which objects are GPUs and NICs, and how many lie below each object. Children come after their parents. */
static void find_devices(kolo_raw_t *raw)
{
    for (int i = 0; i < raw->count; i++) {
        kolo_raw_object_t *object = &raw->objects[i];
        if (object->type == KOLO_RAW_PCI) object->device = device_by_class(object);
        if (!is_nic_osdev(object)) continue;
        kolo_raw_object_t *owner = &raw->objects[object->parent]; /* index 0 is the machine: there is a parent */
        if (owner->type != KOLO_RAW_PCI)
            object->device = KOLO_RAW_NIC;
        else if (owner->device == KOLO_RAW_NO_DEVICE) /* an adapter with another class, such as USB or virtio */
            owner->device = KOLO_RAW_NIC;
    }
    for (int i = raw->count - 1; i > 0; i--) {
        kolo_raw_object_t *object = &raw->objects[i], *parent = &raw->objects[object->parent];
        object->devices += object->device != KOLO_RAW_NO_DEVICE;
        parent->devices += object->devices;
        parent->branches += object->devices > 0 && !same_card(raw, object);
    }
}

static kolo_status_t check_version(const kolo_xml_t *xml)
{
    const kolo_xml_text_t *version = kolo_xml_attr(xml, "version");
    if (!kolo_xml_is(xml->name, "topology")) return kolo_xml_fail(xml, "the root element is not <topology>");
    if (!version || version->bytes < 2 || memcmp(version->at, "2.", 2) != 0)
        return kolo_xml_fail(xml, "not version 2 of hwloc's format; write it with lstopo 2.x --of xml");
    return KOLO_OK;
}

static kolo_status_t read_all(kolo_raw_t *raw, kolo_xml_t *xml)
{
    int object_at[KOLO_XML_MAX_DEPTH + 1]; /* by depth: the object that this element is, or -1 */
    memset(object_at, -1, sizeof object_at);
    for (;;) {
        kolo_xml_event_t event;
        KOLO_TRY(kolo_xml_next(xml, &event));
        if (event == KOLO_XML_END) break;
        if (event == KOLO_XML_CLOSE) continue;
        int depth = xml->depth, parent = object_at[depth - 1];
        object_at[depth] = -1;
        if (depth == 1) {
            KOLO_TRY(check_version(xml));
        } else if (kolo_xml_is(xml->name, "object")) {
            if (depth > 2 && parent < 0) return kolo_xml_fail(xml, "an object inside something that is none");
            KOLO_TRY(add_object(raw, xml, parent));
            object_at[depth] = raw->count - 1;
        } else if (parent >= 0 && kolo_xml_is(xml->name, "info")) {
            read_info(&raw->objects[parent], xml);
        }
    }
    if (raw->count == 0) return kolo_xml_fail(xml, "holds no object");
    find_devices(raw);
    return KOLO_OK;
}

kolo_status_t kolo_topo_raw_read(kolo_raw_t *raw, kolo_xml_t *xml)
{
    memset(raw, 0, sizeof *raw);
    kolo_status_t status = read_all(raw, xml);
    if (status != KOLO_OK) kolo_topo_raw_fini(raw);
    return status;
}

void kolo_topo_raw_fini(kolo_raw_t *raw)
{
    free(raw->objects);
    memset(raw, 0, sizeof *raw);
}
