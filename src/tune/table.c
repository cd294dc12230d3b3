/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes the table file. See table.h.
 */
#include "tune/table.h"

#include "base/clock.h"
#include "base/file/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    const char *name;
    size_t offset;
    uint64_t max;
} field_t;

static const field_t gpu_keys[] = {
    {"ll_all_reduce", offsetof(kolo_tune_gpu_t, ll_all_reduce), 1 << 20},
    {"ll_others", offsetof(kolo_tune_gpu_t, ll_others), 1 << 20},
    {"ll128_all_reduce", offsetof(kolo_tune_gpu_t, ll128_all_reduce), 1 << 30},
    {"ll128_others", offsetof(kolo_tune_gpu_t, ll128_others), 1 << 30},
    {"message_lines", offsetof(kolo_tune_gpu_t, message_lines), (1 << 27) - 1},
    {"give", offsetof(kolo_tune_gpu_t, give), UINT64_C(1) << 50},
    {"ll128_two", offsetof(kolo_tune_gpu_t, ll128_two), 1 << 30}, /* from here on older files have none */
    {"pipe", offsetof(kolo_tune_gpu_t, pipe), UINT64_C(1) << 50},
};
#define GPU_KEYS_FIRST 6
#define MOST_NS        1000000000
#define MOST_MBPS      100000000
static const field_t machine_keys[] = {
    {"launch_ns", offsetof(kolo_tune_machine_t, launch_ns), MOST_NS},
    {"gap_ns", offsetof(kolo_tune_machine_t, gap_ns), MOST_NS},
    {"begin_ns", offsetof(kolo_tune_machine_t, begin_ns), MOST_NS},
    {"hop_ns", offsetof(kolo_tune_machine_t, hop_ns), MOST_NS},
    {"meet_ns", offsetof(kolo_tune_machine_t, meet_ns), MOST_NS},
    {"message_ns", offsetof(kolo_tune_machine_t, message_ns), MOST_NS},
    {"ll_mbps", offsetof(kolo_tune_machine_t, ll_mbps), MOST_MBPS},
    {"ll128_mbps", offsetof(kolo_tune_machine_t, ll128_mbps), MOST_MBPS},
    {"store_mbps", offsetof(kolo_tune_machine_t, store_mbps), MOST_MBPS},
    {"load_mbps", offsetof(kolo_tune_machine_t, load_mbps), MOST_MBPS},
};

/* ---- reading ---- */

typedef struct {
    const char *name;
    int line;
    char text[KOLO_TUNE_TABLE_LINE];
    char *at; /* the words of the line that are left */
    kolo_tune_table_t *table;
    uint64_t items;
    bool begun, ended;
} reader_t;

static kolo_status_t bad(const reader_t *r, const char *what, const char *word)
{
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s, line %d: %s%s%.40s%s", r->name, r->line, what,
                     word ? " \"" : "", word ? word : "", word ? "\"" : "");
}

/* Returns the next word; NULL: there are no more. */
static char *next_word(reader_t *r)
{
    r->at += strspn(r->at, " \t");
    if (!*r->at) return NULL;
    char *word = r->at;
    r->at += strcspn(r->at, " \t");
    if (*r->at) *r->at++ = '\0';
    return word;
}

static bool parse_number(const char *text, uint64_t max, uint64_t *value)
{
    uint64_t v = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || v > max / 10) return false;
        v = v * 10 + (uint64_t)(*text - '0');
    }
    *value = v;
    return v <= max;
}

/* Returns the value of the next word, which must be KEY=VALUE; NULL: it is not. */
static const char *next_value(reader_t *r, const char *key)
{
    char *word = next_word(r);
    size_t n = strlen(key);
    return word && strncmp(word, key, n) == 0 && word[n] == '=' ? word + n + 1 : NULL;
}

static kolo_status_t next_number(reader_t *r, const char *key, uint64_t min, uint64_t max, uint64_t *value)
{
    char what[128];
    const char *text = next_value(r, key);
    if (text && parse_number(text, max, value) && *value >= min) return KOLO_OK;
    snprintf(what, sizeof what, "expected %s= and a number from %llu to %llu here", key, (unsigned long long)min,
             (unsigned long long)max);
    return bad(r, what, text);
}

static kolo_status_t read_cpu(reader_t *r)
{
    kolo_tune_table_t *t = r->table;
    kolo_tune_row_t row;
    uint64_t ranks;
    const char *coll = next_word(r);
    if (!coll || kolo_coll_parse(coll, &row.coll) != KOLO_OK) return bad(r, "expected a collective, not", coll);
    KOLO_TRY(next_number(r, "ranks", 2, 1 << 20, &ranks));
    KOLO_TRY(next_number(r, "from", 0, UINT64_C(1) << 50, &row.from));
    const char *algo = next_value(r, "algo");
    if (!algo || !kolo_way_parse(row.coll, algo, &row.way))
        return bad(r, "expected algo= and an algorithm of this collective, not", algo);
    row.ranks = (uint32_t)ranks;
    if (t->nrows == KOLO_TUNE_TABLE_ROWS) return bad(r, "too many lines for CPUs", NULL);
    for (uint32_t i = 0; i < t->nrows; i++)
        if (t->rows[i].coll == row.coll && t->rows[i].ranks == row.ranks && t->rows[i].from >= row.from)
            return bad(r, "from= must rise from line to line of the same collective and number of ranks", NULL);
    t->rows[t->nrows++] = row;
    return KOLO_OK;
}

static kolo_status_t read_keys(reader_t *r, const field_t *keys, size_t n, void *to)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t value;
        KOLO_TRY(next_number(r, keys[i].name, 0, keys[i].max, &value));
        memcpy((char *)to + keys[i].offset, &value, sizeof value);
    }
    return KOLO_OK;
}

static kolo_status_t read_gpu(reader_t *r)
{
    kolo_tune_table_t *t = r->table;
    kolo_tune_gpu_t gpu = {0};
    uint64_t ranks;
    KOLO_TRY(next_number(r, "ranks", 2, KOLO_TUNE_TABLE_GPUS, &ranks));
    gpu.ranks = (uint32_t)ranks;
    KOLO_TRY(read_keys(r, gpu_keys, GPU_KEYS_FIRST, &gpu));
    if (r->at[strspn(r->at, " \t")])
        KOLO_TRY(read_keys(r, gpu_keys + GPU_KEYS_FIRST, KOLO_COUNTOF(gpu_keys) - GPU_KEYS_FIRST, &gpu));
    for (uint32_t i = 0; i < t->ngpus; i++)
        if (t->gpus[i].ranks == gpu.ranks) return bad(r, "this number of GPUs has a line already", NULL);
    t->gpus[t->ngpus++] = gpu; /* there is room for every number of ranks */
    return KOLO_OK;
}

static kolo_status_t read_machine(reader_t *r)
{
    if (r->table->has_machine) return bad(r, "there is a line \"machine\" already", NULL);
    r->table->has_machine = true;
    return read_keys(r, machine_keys, KOLO_COUNTOF(machine_keys), &r->table->machine);
}

static kolo_status_t read_first(reader_t *r, const char *word)
{
    uint64_t version = 0;
    const char *number = next_word(r);
    if (strcmp(word, "kolo-tune") != 0 || !number || !parse_number(number, 1000000, &version))
        return bad(r, "this is not a table of kolo-tune: its first word is", word);
    r->begun = true;
    if (version == KOLO_TUNE_TABLE_VERSION) return KOLO_OK;
    return kolo_fail(
        KOLO_ERR_INVALID_ARGUMENT,
        "%s is a table of version %llu, this library reads version %d: run kolo-tune to make a new one", r->name,
        (unsigned long long)version, KOLO_TUNE_TABLE_VERSION);
}

static kolo_status_t read_end(reader_t *r)
{
    uint64_t items = 0;
    const char *number = next_word(r);
    if (!number || !parse_number(number, 1000000, &items) || items != r->items)
        return bad(r, "\"end\" has the wrong number of lines,", number);
    r->ended = true;
    return KOLO_OK;
}

static kolo_status_t read_line(reader_t *r)
{
    r->at = r->text;
    r->text[strcspn(r->text, "#")] = '\0';
    const char *word = next_word(r);
    if (!word) return KOLO_OK;
    if (!r->begun) return read_first(r, word);
    if (r->ended) return bad(r, "unexpected text after the end:", word);
    if (strcmp(word, "end") == 0) {
        KOLO_TRY(read_end(r));
    } else {
        r->items++;
        if (strcmp(word, "cpu") == 0)
            KOLO_TRY(read_cpu(r));
        else if (strcmp(word, "gpu") == 0)
            KOLO_TRY(read_gpu(r));
        else if (strcmp(word, "machine") == 0)
            KOLO_TRY(read_machine(r));
        else
            return bad(r, "expected cpu, gpu, machine or end, not", word);
    }
    word = next_word(r);
    return word ? bad(r, "unexpected word", word) : KOLO_OK;
}

kolo_status_t kolo_tune_table_parse(const char *text, size_t bytes, const char *name, kolo_tune_table_t *table)
{
    reader_t r = {.name = name, .table = table};
    memset(table, 0, sizeof *table);
    table->hash = kolo_hash_bytes(KOLO_HASH_INIT, text, bytes);
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - text) - at : bytes - at;
        r.line++;
        if (n >= sizeof r.text) return bad(&r, "the line is too long", NULL);
        if (memchr(text + at, '\0', n)) return bad(&r, "the line contains a zero byte", NULL);
        memcpy(r.text, text + at, n);
        r.text[n] = '\0';
        if (n && r.text[n - 1] == '\r') r.text[n - 1] = '\0';
        kolo_status_t status = read_line(&r);
        if (status != KOLO_OK && !end) return kolo_fail_prefix(status, "the table was cut off in its last line: ");
        if (status != KOLO_OK) return status;
        at += n + 1;
    }
    if (r.ended) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "%s has no line \"end\": it was cut off, or is not a table of kolo-tune", name);
}

/* Opens it. A pipe must not hold us up: nobody may ever write to it. */
static kolo_status_t open_table(const char *path, FILE **file)
{
    struct stat stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && fstat(fd, &stat) == 0 && !S_ISREG(stat.st_mode)) {
        kolo_fd_close(fd);
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the table file %s is not a regular file", path);
    }
    *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (*file) return KOLO_OK;
    kolo_status_t status =
        kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cannot read the table file %s: %s", path, strerror(errno));
    if (fd >= 0) kolo_fd_close(fd);
    return status;
}

kolo_status_t kolo_tune_table_read(const char *path, kolo_tune_table_t *table)
{
    FILE *file;
    KOLO_TRY(open_table(path, &file));
    char *text = malloc(KOLO_TUNE_TABLE_BYTES + 1);
    if (!text) {
        fclose(file);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to read the table file %s", path);
    }
    size_t bytes = fread(text, 1, KOLO_TUNE_TABLE_BYTES + 1, file);
    kolo_status_t status = KOLO_OK;
    if (ferror(file)) status = kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cannot read the table file %s", path);
    if (bytes > KOLO_TUNE_TABLE_BYTES)
        status = kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the table file %s is longer than %u bytes", path,
                           KOLO_TUNE_TABLE_BYTES);
    fclose(file);
    if (status == KOLO_OK) status = kolo_tune_table_parse(text, bytes, path, table);
    free(text);
    return status;
}

/* ---- writing ---- */

static void write_keys(const field_t *keys, size_t n, const void *from, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t value;
        memcpy(&value, (const char *)from + keys[i].offset, sizeof value);
        fprintf(out, " %s=%llu", keys[i].name, (unsigned long long)value);
    }
    fputc('\n', out);
}

void kolo_tune_table_write(const kolo_tune_table_t *t, const char *comment, FILE *out)
{
    fprintf(out, "kolo-tune %d\n", KOLO_TUNE_TABLE_VERSION);
    if (comment) fprintf(out, "# %s\n", comment);
    for (uint32_t i = 0; i < t->nrows; i++)
        fprintf(out, "cpu %s ranks=%u from=%llu algo=%s\n", kolo_coll_name(t->rows[i].coll), t->rows[i].ranks,
                (unsigned long long)t->rows[i].from, kolo_way_name(t->rows[i].coll, t->rows[i].way));
    for (uint32_t i = 0; i < t->ngpus; i++) {
        fprintf(out, "gpu ranks=%u", t->gpus[i].ranks);
        write_keys(gpu_keys, KOLO_COUNTOF(gpu_keys), &t->gpus[i], out);
    }
    if (t->has_machine) {
        fprintf(out, "machine");
        write_keys(machine_keys, KOLO_COUNTOF(machine_keys), &t->machine, out);
    }
    fprintf(out, "end %u\n", t->nrows + t->ngpus + t->has_machine);
}

/* ---- asking ---- */

const kolo_tune_row_t *kolo_tune_table_find(const kolo_tune_table_t *t, kolo_coll_t coll, uint32_t ranks,
                                            uint64_t bytes)
{
    const kolo_tune_row_t *found = NULL;
    for (uint32_t i = 0; i < t->nrows; i++) {
        const kolo_tune_row_t *row = &t->rows[i];
        if (row->coll == coll && row->ranks == ranks && row->from <= bytes) found = row;
    }
    return found;
}
