/* SPDX-License-Identifier: Apache-2.0
 *
 * Timelines of engines on threads: the events of a known program by name and in order on every rank; files that are
 * whole whenever they are stopped; a queue that is too small. What a JSON parser says of such files, and
 * kolo-trace, is tests/kolo-trace's.
 */
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/kit/engines.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static const char *path_of(const char *name, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s/%s", folder, name);
    return buf;
}

/* ---- files ---- */

/* A file that was stopped is an array with an event a line. */
static char *read_whole(const char *name)
{
    char path[128];
    struct stat st;
    FILE *f = fopen(path_of(name, path, sizeof path), "r");
    if (!EXPECT(f != NULL)) abort();
    if (fstat(fileno(f), &st)) abort();
    char *text = calloc(1, (size_t)st.st_size + 1);
    if (!text || fread(text, 1, (size_t)st.st_size, f) != (size_t)st.st_size) abort();
    fclose(f);
    size_t n = strlen(text);
    EXPECT(n == (size_t)st.st_size && n > 4 && strncmp(text, "[\n", 2) == 0);
    EXPECT(strcmp(text + n - 4, "}\n]\n") == 0);
    for (const char *line = text + 2; line < text + n - 2;) {
        const char *end = strchr(line, '\n');
        bool last = end == text + n - 3;
        if (!EXPECT(end && strncmp(line, "{\"ph\":\"", 7) == 0 && (last || strncmp(end - 2, "},", 2) == 0))) break;
        line = end + 1;
    }
    return text;
}

/* The row of a tensor in the viewer, as it stands in an event; "": none. */
static void row_of(const char *text, const char *tensor, char *row, size_t bytes)
{
    char like[700];
    snprintf(like, sizeof like, "\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}", tensor);
    const char *at = strstr(text, like);
    row[0] = '\0';
    if (!at) return;
    while (strncmp(at, "\"tid\":", 6) != 0) at--;
    snprintf(row, bytes, "%.*s", (int)(strchr(at + 6, ',') + 1 - at), at);
}

/* The marks of ranks that follow each other come in any order; here in theirs. */
static void sort_marks(char *text)
{
    for (char *p = strstr(text, "X:"); p; p = strstr(p + 1, "X:")) {
        if (!(p[2] >= '0' && p[2] <= '9' && strncmp(p + 3, " X:", 3) == 0 && p[6] >= '0' && p[6] < p[2])) continue;
        char lower = p[6];
        p[6] = p[2];
        p[2] = lower;
        p = text; /* again from the beginning */
    }
}

/* "B:NEGOTIATE_ALLREDUCE X:0 ..." of one tensor, in the order of the file, whose times must not go back. What a
 * tensor alone needs before and after its operation is told only if it takes time, and left out here. */
static void events_of(const char *text, const char *tensor, char *buf, size_t bytes)
{
    char row[32];
    size_t at = 0;
    double before = 0;
    buf[0] = '\0';
    row_of(text, tensor, row, sizeof row);
    for (const char *line = text; *row && (line = strchr(line, '\n')) != NULL; line++) {
        const char *end = strchr(line + 1, '\n'), *tid = strstr(line, row), *ts = strstr(line, "\"ts\":");
        const char *name = strstr(line, "\"name\":\"");
        if (!end) break;
        if (!tid || tid > end || !ts || !name || line[8] == 'M') continue;
        double now = strtod(ts + 5, NULL);
        name += 8;
        if (strncmp(name, "PREPARE_INPUT", 13) == 0 || strncmp(name, "FINISH_OUTPUT", 13) == 0) continue;
        if (line[8] != 'X' || strncmp(name, "MEMCPY", 6) == 0) EXPECT(now >= before);
        if (now > before) before = now;
        at += (size_t)snprintf(buf + at, bytes - at, "%s%c:%.*s", at ? " " : "", line[8], (int)strcspn(name, "\""),
                               name);
        if (at >= bytes) abort();
    }
    sort_marks(buf);
}

static void expect_events(const char *text, const char *tensor, const char *want)
{
    char got[2000];
    events_of(text, tensor, got, sizeof got);
    if (EXPECT(strcmp(got, want) == 0)) return;
    fprintf(stderr, "%s\n    has:  %s\n    want: %s\n", tensor, got, want);
}

static void await(erank_t *r, int64_t handle)
{
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
}

/* ---- a known program ---- */

static const char *ready_marks(const erank_t *r, bool cached, char *buf, size_t bytes)
{
    if (r->rank == 0 && !cached)
        snprintf(buf, bytes, "X:0 X:1 X:2");
    else
        snprintf(buf, bytes, "X:%d", r->rank);
    return buf;
}

/* NEGOTIATE_what, what it consists of, what. */
static void expect_tensor(const erank_t *r, const char *text, const char *tensor, const char *what,
                          const char *doings, int times)
{
    char want[1500] = "", marks[32];
    size_t at = 0;
    for (int i = 0; i < times; i++)
        at += (size_t)snprintf(want + at, sizeof want - at,
                               "%sB:NEGOTIATE_%s %s E:NEGOTIATE_%s B:%s X:QUEUE%s E:%s", i ? " " : "", what,
                               ready_marks(r, i > 0, marks, sizeof marks), what, what, doings, what);
    expect_events(text, tensor, want);
}

static void work(erank_t *r)
{
    static const int64_t two = 2, large = 100000, rows[2] = {2, 3};
    float x[2][2] = {{1, 2}, {3, 4}}, part[6] = {0}, all[18], *y = calloc(large, sizeof *y);
    int64_t handles[2], handle;
    kolo_tensor_t pair[2] = {float_tensor("fused.0", x[0], &two), float_tensor("fused.1", x[1], &two)};
    kolo_tensor_t alone = float_tensor("alone", y, &large), cut = {"cut", KOLO_FLOAT32, 2, rows, part, all};
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(kolo_engine_all_reduce_group(r->engine, pair, 2, KOLO_MAX, 1, 1, NULL, handles));
        await(r, handles[0]);
        await(r, handles[1]);
    }
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &alone, KOLO_SUM, 1, 1, NULL, &handle));
    await(r, handle);
    EXPECT_OK(kolo_engine_all_gather(r->engine, &cut, NULL, &handle));
    await(r, handle);
    cut.name = "spread";
    EXPECT_OK(kolo_engine_broadcast(r->engine, &cut, 1, NULL, &handle));
    await(r, handle);
    EXPECT_OK(barrier_now(r));
    alone.name = "wrong";
    alone.shape = r->rank == 1 ? &two : &large;
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &alone, KOLO_SUM, 1, 1, NULL, &handle));
    EXPECT_IS(KOLO_ERR_MISMATCH, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    free(y);
}

static void known_program(erank_t *r)
{
    char path[128], name[32];
    EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("known.%r.json", path, sizeof path), r->rank == 1));
    meet(); /* all have begun before anything is submitted, so that rank 0 knows when others were ready */
    work(r);
    meet();
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    meet(); /* else rank 0 could still write of ranks that are ready for the next */
    float x = 1;
    EXPECT_OK(reduce_now(r, "after", &x, 1, KOLO_SUM));
    snprintf(name, sizeof name, "known.%d.json", r->rank);
    char *text = read_whole(name);
    const char *fused = " X:MEMCPY_IN_FUSION_BUFFER X:KOLO_ALLREDUCE X:MEMCPY_OUT_FUSION_BUFFER";
    expect_tensor(r, text, "fused.0", "ALLREDUCE", fused, 2);
    expect_tensor(r, text, "fused.1", "ALLREDUCE", fused, 2);
    expect_tensor(r, text, "alone", "ALLREDUCE", " X:KOLO_ALLREDUCE", 1);
    expect_tensor(r, text, "cut", "ALLGATHER", " X:KOLO_ALLGATHER", 1);
    expect_tensor(r, text, "spread", "BROADCAST", " X:KOLO_BROADCAST", 1);
    expect_tensor(r, text, "barrier", "BARRIER", "", 1);
    expect_tensor(r, text, "wrong", "ALLREDUCE", "", 1);
    expect_events(text, "after", "");
    EXPECT(strstr(text, "\"name\":\"ALLGATHER\",\"args\":{\"dtype\":\"float32\",\"shape\":\"[2, 3]\"}}") != NULL);
    EXPECT(strstr(text, "\"error\":") != NULL);
    EXPECT(strstr(text, "\"offset_ns\":") != NULL);
    EXPECT((strstr(text, "CYCLE_START") != NULL) == (r->rank == 1));
    EXPECT(strstr(text, "\"lost_events\":0,\"lost_tensors\":0") != NULL);
    free(text);
}

static void a_known_program_is_told_in_order_on_every_rank(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, known_program, NULL), 0);
}

static void in_a_set(erank_t *r)
{
    static const int64_t one = 1;
    const int ranks[] = {0, 2};
    char path[128], name[32], got[200];
    float x = 1;
    int64_t handle;
    kolo_tensor_t t = float_tensor("x", &x, &one);
    kolo_submission_t how = {0};
    EXPECT_OK(kolo_engine_add_set(r->engine, ranks, 2, &how.set));
    EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("set.%r.json", path, sizeof path), 0));
    meet();
    EXPECT_OK(reduce_now(r, "x", &x, 1, KOLO_MAX));
    if (r->rank != 1) {
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_MAX, 1, 1, &how, &handle));
        await(r, handle);
    }
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    snprintf(name, sizeof name, "set.%d.json", r->rank);
    char *text = read_whole(name);
    const char *want = r->rank == 0   ? "B:NEGOTIATE_ALLREDUCE X:0 X:2 E:NEGOTIATE_ALLREDUCE B:ALLREDUCE X:QUEUE "
                                        "X:KOLO_ALLREDUCE E:ALLREDUCE"
                       : r->rank == 2 ? "B:NEGOTIATE_ALLREDUCE X:2 E:NEGOTIATE_ALLREDUCE B:ALLREDUCE X:QUEUE "
                                        "X:KOLO_ALLREDUCE E:ALLREDUCE"
                                      : "";
    expect_events(text, "set 1: x", want);
    events_of(text, "x", got, sizeof got);
    EXPECT(strstr(got, "E:ALLREDUCE") != NULL);
    free(text);
}

static void tensors_of_sets_have_rows_of_their_own(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, in_a_set, NULL), 0);
}

static void changed(erank_t *r)
{
    const int ranks[] = {0, 1};
    char path[128], name[32];
    int set;
    EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("change.%r.json", path, sizeof path), 0));
    meet();
    EXPECT_OK(kolo_engine_add_set(r->engine, ranks, 2, &set));
    EXPECT_OK(kolo_engine_remove_set(r->engine, set));
    meet();
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    snprintf(name, sizeof name, "change.%d.json", r->rank);
    char *text = read_whole(name);
    expect_tensor(r, text, "adding of a process set", "ADDSET", "", 1);
    expect_tensor(r, text, "removal of a process set", "REMOVESET", "", 1);
    free(text);
}

static void changes_of_the_sets_have_rows_too(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, changed, NULL), 0);
}

/* ---- start and stop ---- */

static void in_flight(erank_t *r)
{
    static const int64_t one = 1;
    char path[128], got[200];
    float x = 1, y = 1;
    int64_t handle;
    kolo_tensor_t t = float_tensor("open", &x, &one);
    EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("open.%r.json", path, sizeof path), 0));
    meet();
    if (r->rank == 0) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
    EXPECT_OK(reduce_now(r, "closed", &y, 1, KOLO_SUM));
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("next.%r.json", path, sizeof path), 0));
    /* a cycle that was under way when the timeline was started is not in it; this one begins after */
    EXPECT_OK(reduce_now(r, "between", &y, 1, KOLO_SUM));
    meet();
    if (r->rank > 0) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
    await(r, handle);
    meet();
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    if (r->rank > 0) return;
    char *text = read_whole("open.0.json");
    events_of(text, "open", got, sizeof got);
    EXPECT(strcmp(got, "B:NEGOTIATE_ALLREDUCE X:0") == 0);
    free(text);
    text = read_whole("next.0.json");
    events_of(text, "open", got, sizeof got); /* it began in another file; that the other came is told here */
    EXPECT(strstr(got, "X:1") && strstr(got, "E:NEGOTIATE_ALLREDUCE") && !strstr(got, "KOLO"));
    free(text);
}

static void a_timeline_may_stop_while_tensors_are_in_flight(void **state)
{
    (void)state;
    assert_int_equal(run_engines(2, NULL, in_flight, NULL), 0);
}

/* ---- a start while the loop waits for another rank ---- */

static _Atomic int held; /* 1: a loop is in its callback; 2: it may go on */

static void await_held(int value)
{
    uint64_t end = kolo_deadline_ms(WAIT_MS);
    while (atomic_load(&held) != value && kolo_now_ns() < end) sched_yield();
    EXPECT(atomic_load(&held) == value);
}

static void hold(void *arg, const kolo_completion_t *completion)
{
    (void)arg;
    (void)completion;
    atomic_store(&held, 1);
    await_held(2);
}

/* Rank 0's loop is in a cycle, in which rank 2's is missing, when the timeline is started. */
static void start_in_a_cycle(erank_t *r)
{
    static const int64_t one = 1;
    float x[3] = {1, 1, 1};
    char path[128], got[500];
    int64_t first, own, late;
    kolo_tensor_t t[3] = {float_tensor("first", &x[0], &one), float_tensor("own", &x[1], &one),
                          float_tensor("late", &x[2], &one)};
    const kolo_submission_t how = {.done = r->rank == 2 ? hold : NULL};
    if (r->rank == 0) atomic_store(&held, 0);
    meet();
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t[0], KOLO_SUM, 1, 1, &how, &first));
    if (r->rank != 2)
        await(r, first);
    else
        await_held(1);
    meet();
    if (r->rank == 0) {
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t[1], KOLO_SUM, 1, 1, NULL, &own));
        /* Its loop takes this and waits for rank 2, unless it came there before; then this stays. */
        for (uint64_t end = kolo_deadline_ms(100); kolo_now_ns() < end; sched_yield())
            if (atomic_load(&r->engine->all->lane.nfresh) == 0) break;
        EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("late.json", path, sizeof path), 0));
    }
    meet();
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t[2], KOLO_SUM, 1, 1, NULL, &late));
    if (r->rank == 2) atomic_store(&held, 2);
    if (r->rank > 0) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t[1], KOLO_SUM, 1, 1, NULL, &own));
    if (r->rank == 2) await(r, first);
    await(r, own);
    await(r, late);
    if (r->rank > 0) return;
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    char *text = read_whole("late.json");
    events_of(text, "late", got, sizeof got);
    if (!EXPECT(strncmp(got, "B:NEGOTIATE_ALLREDUCE X:0 X:1 X:2 E:", 36) == 0)) fprintf(stderr, "has: %s\n", got);
    free(text);
}

static void what_others_send_after_a_start_is_in_the_timeline(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, start_in_a_cycle, NULL), 0);
}

static void odd_calls(erank_t *r)
{
    char path[128], other[128];
    float x = 1;
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_timeline_start(NULL, "x", 0), "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_timeline_stop(NULL), "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_timeline_start(r->engine, "", 0), "path");
    EXPECT_ERROR(KOLO_ERR_SYSTEM, kolo_engine_timeline_start(r->engine, "/nowhere/at/all.%r", 0),
                 "/nowhere/at/all.", "No such file");
    EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("one.json", path, sizeof path), 0));
    meet();
    EXPECT_OK(reduce_now(r, "a \"quoted\\\" name \xc3\xa9 \xff", &x, 1, KOLO_SUM));
    EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("two.json", other, sizeof other), 0));
    meet();
    EXPECT_OK(reduce_now(r, "second", &x, 1, KOLO_SUM));
    if (r->rank > 0) return;
    char *text = read_whole("one.json"); /* complete, since the next has begun */
    EXPECT(strstr(text, "\"a \\\"quoted\\\\\\\" name \xc3\xa9 \\ufffd\"") != NULL);
    EXPECT(strstr(text, "second") == NULL);
    free(text);
}

static void paths_without_a_rank_are_written_by_rank_0(void **state)
{
    char path[128];
    (void)state;
    assert_int_equal(run_engines(2, NULL, odd_calls, NULL), 0);
    char *text = read_whole("two.json"); /* the end of the engine completes it */
    assert_non_null(strstr(text, "second"));
    assert_non_null(strstr(text, "kolo_end"));
    free(text);
    assert_int_equal(access(path_of("one.1.json", path, sizeof path), F_OK), -1);
}

static _Atomic int still;

static void start_and_stop(erank_t *r)
{
    char path[128], name[32];
    float x = 1, on = 1;
    if (r->rank == 0) atomic_store(&still, 40);
    meet();
    while (on > 0) {
        if (r->rank == 0 && atomic_load(&still) % 2)
            EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("often.%r.json", path, sizeof path), 1));
        if (r->rank == 1 && atomic_load(&still) % 3 == 0)
            EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("often.%r.json", path, sizeof path), 0));
        EXPECT_OK(reduce_now(r, "t", &x, 1, KOLO_MAX));
        if (r->rank == 0 && atomic_load(&still) % 2 == 0) EXPECT_OK(kolo_engine_timeline_stop(r->engine));
        if (r->rank == 0) on = (float)atomic_fetch_sub(&still, 1);
        EXPECT_OK(reduce_now(r, "on", &on, 1, KOLO_MIN));
    }
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    snprintf(name, sizeof name, "often.%d.json", r->rank);
    free(read_whole(name));
}

static void timelines_start_and_stop_at_any_time(void **state)
{
    (void)state;
    assert_int_equal(run_engines(2, NULL, start_and_stop, NULL), 0);
}

/* ---- a queue that is too small: KOLO_TIMELINE_QUEUE=64 ---- */

static void burst(erank_t *r)
{
    enum { MANY = 400 };
    static const int64_t one = 1;
    float x[MANY];
    int64_t handles[MANY];
    char path[128], name[32];
    EXPECT_OK(kolo_engine_timeline_start(r->engine, path_of("burst.%r.json", path, sizeof path), 0));
    meet();
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "burst.%d", i);
        x[i] = (float)i;
        kolo_tensor_t t = float_tensor(name, &x[i], &one);
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handles[i]));
    }
    for (int i = 0; i < MANY; i++) {
        await(r, handles[i]);
        EXPECT(x[i] == 2 * (float)i);
    }
    EXPECT_OK(kolo_engine_timeline_stop(r->engine));
    snprintf(name, sizeof name, "burst.%d.json", r->rank);
    char *text = read_whole(name);
    const char *lost = strstr(text, "\"lost_events\":"), *left_out = strstr(text, "\"lost_tensors\":");
    EXPECT(lost && left_out && strtol(lost + 14, NULL, 10) + strtol(left_out + 15, NULL, 10) > 0);
    free(text);
}

static void what_finds_no_room_is_counted(void **state)
{
    (void)state;
    assert_int_equal(run_engines(2, NULL, burst, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_known_program_is_told_in_order_on_every_rank),
        cmocka_unit_test(tensors_of_sets_have_rows_of_their_own),
        cmocka_unit_test(changes_of_the_sets_have_rows_too),
        cmocka_unit_test(a_timeline_may_stop_while_tensors_are_in_flight),
        cmocka_unit_test(what_others_send_after_a_start_is_in_the_timeline),
        cmocka_unit_test(paths_without_a_rank_are_written_by_rank_0),
        cmocka_unit_test(timelines_start_and_stop_at_any_time),
    };
    const struct CMUnitTest small[] = {
        cmocka_unit_test(what_finds_no_room_is_counted),
        cmocka_unit_test(timelines_start_and_stop_at_any_time),
    };
    char command[100];
    snprintf(folder, sizeof folder, "/tmp/kolo-timeline-XXXXXX");
    if (!mkdtemp(folder)) abort();
    int failed = getenv("KOLO_TIMELINE_QUEUE") ? cmocka_run_group_tests(small, NULL, NULL)
                                               : cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) ? 1 : failed;
}
