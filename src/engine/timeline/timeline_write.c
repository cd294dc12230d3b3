/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that writes a timeline: records from the ring become events in JSON, an event a line, in an array. The
 * array's closing bracket is written with each block of events, over the bracket of the block before, so what is in
 * the file is strict JSON between any two writes, also when the process is killed there. A kill in the middle of a
 * write leaves a torn last line; viewers take that, and kolo-trace repairs it.
 *
 * A process of the viewer is a rank, a thread of it a tensor. Names of events are those of Horovod's timeline.
 */
#include "base/file/fds.h"
#include "base/file/limit.h"
#include "base/file/output.h"
#include "engine/timeline/timeline.h"

#include "base/log.h"
#include "base/process.h"
#include "engine/backends/backend.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES  (64u << 10)
#define RECORD_BYTES 8192u /* more than any record becomes */
#define LINGER_MS    10    /* between blocks while there is work: fewer wake-ups, larger writes */

static const char *const work_names[] = {[KOLO_WORK_ALL_REDUCE] = "ALLREDUCE",
                                         [KOLO_WORK_ALL_GATHER] = "ALLGATHER",
                                         [KOLO_WORK_BROADCAST] = "BROADCAST",
                                         [KOLO_WORK_ALL_TO_ALL] = "ALLTOALL",
                                         [KOLO_WORK_REDUCE_SCATTER] = "REDUCESCATTER",
                                         [KOLO_WORK_JOIN] = "JOIN",
                                         [KOLO_WORK_BARRIER] = "BARRIER",
                                         [KOLO_WORK_ADD_SET] = "ADDSET",
                                         [KOLO_WORK_REMOVE_SET] = "REMOVESET",
                                         [KOLO_TRACE_ADASUM] = "ADASUM"};

static const char *const do_names[KOLO_DO_COUNT] = {
    [KOLO_DO_QUEUE] = "QUEUE",
    [KOLO_DO_COPY_IN] = "MEMCPY_IN_FUSION_BUFFER",
    [KOLO_DO_COPY_OUT] = "MEMCPY_OUT_FUSION_BUFFER",
    [KOLO_DO_INPUT] = "PREPARE_INPUT",
    [KOLO_DO_OUTPUT] = "FINISH_OUTPUT",
    [KOLO_DO_ADASUM] = "KOLO_ADASUM",
    [KOLO_DO_WAIT] = "WAIT_FOR_DATA",
};

/* ---- text ---- */

static void put_text(kolo_timeline_t *t, const char *text)
{
    size_t n = strlen(text);
    memcpy(t->text + t->length, text, n);
    t->length += n;
}

static void put_number(kolo_timeline_t *t, uint64_t value)
{
    char digits[20];
    size_t n = 0;
    do digits[n++] = (char)('0' + value % 10);
    while (value /= 10);
    while (n > 0) t->text[t->length++] = digits[--n];
}

/* Nanoseconds as microseconds with three digits behind the point. */
static void put_time(kolo_timeline_t *t, uint64_t ns)
{
    put_number(t, ns / 1000);
    t->text[t->length++] = '.';
    for (uint64_t unit = 100; unit > 0; unit /= 10) t->text[t->length++] = (char)('0' + ns / unit % 10);
}

/* Returns the bytes of the UTF-8 character that begins here, 0: it is none. */
static size_t utf8_bytes(const unsigned char *p)
{
    size_t n = p[0] < 0x80                   ? 1
               : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
               : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
               : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    bool surrogate = p[0] == 0xed && p[1] >= 0xa0;
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    return surrogate || overlong || (p[0] == 0xf4 && p[1] >= 0x90) ? 0 : n;
}

/* Makes bytes, as names are, a string of JSON, which is Unicode. */
static void put_string(kolo_timeline_t *t, const char *text)
{
    t->text[t->length++] = '"';
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        size_t n = utf8_bytes(p);
        if (*p == '"' || *p == '\\') t->text[t->length++] = '\\';
        if (n == 0 || *p < 0x20)
            put_text(t, "\\ufffd");
        else
            for (size_t i = 0; i < n; i++) t->text[t->length++] = (char)p[i];
        p += n ? n : 1;
    }
    t->text[t->length++] = '"';
}

/* Writes ,\n{"ph":"B","pid":3,"tid":7,"ts":12.345. */
static void put_event(kolo_timeline_t *t, const char *phase, uint32_t row, uint64_t ns)
{
    put_text(t, ",\n{\"ph\":\"");
    put_text(t, phase);
    put_text(t, "\",\"pid\":");
    put_number(t, (uint64_t)t->rank);
    put_text(t, ",\"tid\":");
    put_number(t, row);
    put_text(t, ",\"ts\":");
    put_time(t, ns > t->start_ns ? ns - t->start_ns : 0);
}

static void put_name(kolo_timeline_t *t, const char *prefix, const char *name)
{
    put_text(t, ",\"name\":\"");
    put_text(t, prefix);
    put_text(t, name);
    put_text(t, "\"");
}

static void put_row(kolo_timeline_t *t, uint32_t row, const char *name)
{
    put_event(t, "M", row, 0);
    put_text(t, ",\"name\":\"thread_name\",\"args\":{\"name\":");
    put_string(t, name);
    put_text(t, "}}");
}

/* ---- records ---- */

static void put_done(kolo_timeline_t *t, const kolo_trace_record_t *r, uint64_t at)
{
    int ndims = (int)(r->value & UINT32_MAX);
    put_event(t, "E", r->tensor->number, r->ns);
    put_name(t, "", work_names[r->detail]);
    put_text(t, ",\"args\":{\"dtype\":\"");
    put_text(t, kolo_tensor_request_type_name((kolo_type_t)(r->value >> 32)));
    put_text(t, "\",\"shape\":\"[");
    for (int i = 0; i < ndims; i++) {
        int64_t dim;
        memcpy(&dim, (const char *)kolo_trace_slot(&t->ring, at + 1 + (uint64_t)i / 4) + i % 4 * 8, sizeof dim);
        if (i > 0) put_text(t, ", ");
        put_number(t, (uint64_t)dim);
    }
    put_text(t, "]\"");
    if (r->extra != KOLO_OK) {
        put_text(t, ",\"error\":");
        put_string(t, kolo_status_string((kolo_status_t)r->extra));
    }
    put_text(t, "}}");
}

static void put_clock(kolo_timeline_t *t, const kolo_trace_record_t *r)
{
    int64_t offset = (int64_t)r->value;
    put_event(t, "i", 0, r->ns);
    put_text(t, ",\"s\":\"p\",\"name\":\"CLOCK\",\"args\":{\"offset_ns\":");
    if (offset < 0) put_text(t, "-");
    put_number(t, offset < 0 ? -(uint64_t)offset : (uint64_t)offset);
    put_text(t, ",\"error_ns\":");
    put_number(t, r->extra);
    put_text(t, "}}");
}

/* Writes the name as in MPI_ALLREDUCE. */
static void put_move(kolo_timeline_t *t, int move)
{
    const kolo_backend_t *backend = kolo_backend_at(move / KOLO_WORK_COUNT);
    char prefix[32];
    size_t n = 0;
    for (const char *c = backend ? backend->name : "kolo"; *c && n < sizeof prefix - 2; c++)
        prefix[n++] = (char)toupper((unsigned char)*c);
    prefix[n++] = '_';
    prefix[n] = '\0';
    put_name(t, prefix, work_names[move % KOLO_WORK_COUNT]);
}

static void put_do(kolo_timeline_t *t, const kolo_trace_record_t *r)
{
    put_event(t, "X", r->tensor->number, r->ns);
    put_text(t, ",\"dur\":");
    put_time(t, r->value > r->ns ? r->value - r->ns : 0);
    if (r->detail < KOLO_DO_COUNT)
        put_name(t, "", do_names[r->detail]);
    else
        put_move(t, r->detail - KOLO_DO_COUNT);
    put_text(t, "}");
}

static void put_ready(kolo_timeline_t *t, const kolo_trace_record_t *r)
{
    put_event(t, "X", r->tensor->number, r->ns);
    put_text(t, ",\"dur\":0,\"name\":\"");
    put_number(t, r->value);
    put_text(t, "\"}");
}

static void put_span(kolo_timeline_t *t, const kolo_trace_record_t *r, const char *phase, const char *prefix)
{
    put_event(t, phase, r->tensor->number, r->ns);
    put_name(t, prefix, work_names[r->detail]);
    put_text(t, "}");
}

/* Returns how many slots it takes. */
static uint64_t put_record(kolo_timeline_t *t, uint64_t at)
{
    const kolo_trace_record_t *r = kolo_trace_slot(&t->ring, at);
    if (r->tensor && !r->tensor->known) {
        r->tensor->known = true;
        put_row(t, r->tensor->number, r->tensor->text + (r->tensor->text[0] == '\1'));
    }
    switch ((kolo_trace_kind_t)r->kind) {
    case KOLO_TRACE_NEGOTIATE:
        put_span(t, r, "B", "NEGOTIATE_");
        return 1;
    case KOLO_TRACE_READY:
        put_ready(t, r);
        return 1;
    case KOLO_TRACE_AGREED:
        put_span(t, r, "E", "NEGOTIATE_");
        if (r->value) put_span(t, r, "B", "");
        return 1;
    case KOLO_TRACE_DO:
        put_do(t, r);
        return 1;
    case KOLO_TRACE_DONE:
        put_done(t, r, at);
        return 1 + ((r->value & UINT32_MAX) + 3) / 4;
    case KOLO_TRACE_CYCLE:
        put_event(t, "i", 0, r->ns);
        put_text(t, ",\"s\":\"p\",\"name\":\"CYCLE_START\"}");
        return 1;
    case KOLO_TRACE_CLOCK:
        put_clock(t, r);
        return 1;
    }
    return 1;
}

/* ---- the file ---- */

static const char closing[] = "\n]\n";

static bool write_at(int fd, const char *text, size_t bytes, uint64_t at)
{
    kolo_file_quiet_t quiet;
    kolo_file_quiet(&quiet);
    while (bytes > 0) {
        ssize_t n = pwrite(fd, text, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        text += n;
        bytes -= (size_t)n;
        at += (uint64_t)n;
    }
    kolo_file_loud(&quiet);
    return bytes == 0;
}

/* Ends a file on a full disk: what is there is made a whole, and stays. If nothing is there, the caller has the
 * error. */
static void end_early(kolo_timeline_t *t, const char *why)
{
    char tail[KOLO_GZIP_TAIL_BYTES];
    size_t bytes = 3;
    memcpy(tail, closing, bytes);
    if (t->gzip) {
        kolo_gzip_forget(t->gzip, closing, tail);
        bytes = sizeof tail;
    }
    t->broken = true;
    if (write_at(t->fd, tail, bytes, t->end) && kolo_file_resize(t->fd, t->end + bytes)) why = strerror(errno);
    if (t->end == 0)
        kolo_fail(KOLO_ERR_SYSTEM, "engine: the timeline %s cannot be written: %s", t->path, why);
    else
        kolo_warn("engine", "the timeline %s ends early, it cannot be written: %s", t->path, why);
}

/* Writes what stands in t->text into the file, with the closing bracket. */
static bool flush(kolo_timeline_t *t)
{
    size_t block = t->length, tail = 3;
    const char *bytes = t->text;
    if (block == 0 || t->broken) {
        t->length = 0;
        return !t->broken;
    }
    if (t->gzip) {
        bytes = kolo_gzip_block(t->gzip, t->text, t->length, closing, &block);
        tail = KOLO_GZIP_TAIL_BYTES;
    } else {
        put_text(t, closing);
    }
    t->length = 0;
    if (bytes && write_at(t->fd, bytes, block + tail, t->end)) {
        t->end += block;
        return true;
    }
    end_early(t, bytes ? strerror(errno) : "zlib has failed");
    return false;
}

static void drain(kolo_timeline_t *t, uint64_t to)
{
    for (uint64_t at = atomic_load_explicit(&t->ring.tail, memory_order_relaxed); at < to;) {
        at += put_record(t, at);
        atomic_store_explicit(&t->ring.tail, at, memory_order_release);
        if (t->length > BLOCK_BYTES - RECORD_BYTES) flush(t);
    }
    flush(t);
}

/* Says how much of it is missing, if anything. */
static void put_losses(kolo_timeline_t *t)
{
    uint64_t lost = atomic_load(&t->ring.lost), left_out = atomic_load(&t->ring.left_out);
    put_event(t, "M", 0, 0);
    put_text(t, ",\"name\":\"kolo_end\",\"args\":{\"lost_events\":");
    put_number(t, lost);
    put_text(t, ",\"lost_tensors\":");
    put_number(t, left_out);
    put_text(t, "}}");
    if (lost + left_out > 0 && !t->broken)
        kolo_warn("engine", "the timeline %s lacks %llu tensors and %llu events: KOLO_TIMELINE_QUEUE is too small",
                  t->path, (unsigned long long)left_out, (unsigned long long)lost);
}

static void describe(void *arg, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "events for %s", ((const kolo_timeline_t *)arg)->path);
}

static void park(kolo_timeline_t *t)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe, t, 1);
    uint32_t ticket = kolo_gate_ticket(&t->gate);
    atomic_store(&t->parked, true);
    kolo_fence_cores(); /* the loop sees that, or we see what it has put */
    bool empty = atomic_load(&t->ring.head) == atomic_load(&t->ring.tail);
    if (empty && !atomic_load(&t->closed)) kolo_gate_wait(&t->gate, ticket, &wait);
    atomic_store(&t->parked, false);
}

static void *write_all(void *arg)
{
    kolo_timeline_t *t = arg;
    kolo_wait_t wait;
    pthread_setname_np(pthread_self(), "kolo-timeline");
    while (!atomic_load(&t->closed)) {
        uint32_t ticket = kolo_gate_ticket(&t->gate);
        uint64_t head = atomic_load_explicit(&t->ring.head, memory_order_acquire);
        if (head == atomic_load_explicit(&t->ring.tail, memory_order_relaxed)) {
            park(t);
            continue;
        }
        drain(t, head);
        kolo_wait_init(&wait, NULL, kolo_deadline_ms(LINGER_MS), describe, t, 1);
        if (!atomic_load(&t->closed)) kolo_gate_wait(&t->gate, ticket, &wait);
    }
    drain(t, atomic_load(&t->ring.head));
    put_losses(t);
    flush(t);
    return NULL;
}

static void put_head(kolo_timeline_t *t, const kolo_engine_place_t *place, const char *host)
{
    struct timespec now;
    char text[240];
    clock_gettime(CLOCK_REALTIME, &now);
    put_text(t, "[\n{\"ph\":\"M\",\"name\":\"kolo_timeline\",\"pid\":");
    put_number(t, (uint64_t)t->rank);
    snprintf(text, sizeof text,
             ",\"args\":{\"version\":1,\"rank\":%d,\"size\":%d,\"local_rank\":%d,\"process\":%d,\"every\":%llu,"
             "\"start_ns\":%llu,\"start_time_since_epoch_in_micros\":%lld,\"host\":",
             place->rank, place->size, place->local_rank, (int)getpid(), (unsigned long long)t->every,
             (unsigned long long)t->start_ns, (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    put_text(t, text);
    put_string(t, host);
    put_text(t, "}},\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":");
    put_number(t, (uint64_t)t->rank);
    snprintf(text, sizeof text, "rank %d on %.64s", t->rank, host);
    put_text(t, ",\"args\":{\"name\":");
    put_string(t, text);
    put_text(t, "}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":");
    put_number(t, (uint64_t)t->rank);
    put_text(t, ",\"args\":{\"sort_index\":");
    put_number(t, (uint64_t)t->rank);
    put_text(t, "}}");
    put_row(t, 0, "cycles");
}

kolo_status_t kolo_timeline_open(kolo_timeline_t *t, const kolo_engine_place_t *place, const char *host)
{
    t->text = malloc(BLOCK_BYTES + RECORD_BYTES);
    if (!t->text) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a timeline");
    size_t n = strlen(t->path);
    if (n > 3 && strcmp(t->path + n - 3, ".gz") == 0) KOLO_TRY(kolo_gzip_open(&t->gzip));
    char why[4096 + 100];
    t->fd = kolo_output_open(t->path, O_TRUNC, why, sizeof why);
    if (t->fd < 0) return kolo_fail(KOLO_ERR_SYSTEM, "engine: cannot write the timeline %s", why);
    put_head(t, place, host);
    kolo_status_t status = KOLO_OK;
    if (!flush(t)) status = KOLO_ERR_SYSTEM;
    int error = status == KOLO_OK ? kolo_thread_start(&t->writer, 0, write_all, t) : 0;
    if (error) status = kolo_fail_errno(KOLO_ERR_SYSTEM, error, "engine: cannot start a thread for a timeline");
    if (status != KOLO_OK) close(t->fd);
    return status;
}

void kolo_timeline_close(kolo_timeline_t *t)
{
    atomic_store(&t->closed, true);
    kolo_gate_open(&t->gate);
    pthread_join(t->writer, NULL);
    if (close(t->fd)) kolo_warn("engine", "the timeline %s may not be complete: %s", t->path, strerror(errno));
}
