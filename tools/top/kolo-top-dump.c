/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-top --dump: what each rank did last, joined over the ranks of a communicator, and the verdict; as text for a
 * person or as JSON.
 */
#include "kolo-top.h"

#include "algo/algo.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const states[] = {
    [KOLO_RECORD_NONE] = "none",         [KOLO_RECORD_QUEUED] = "queued", [KOLO_RECORD_CONNECTING] = "connecting",
    [KOLO_RECORD_RUNNING] = "running",   [KOLO_RECORD_DONE] = "done",     [KOLO_RECORD_FAILED] = "failed",
    [KOLO_RECORD_LAUNCHED] = "launched",
};

static const char *algo_of(const kolo_record_op_t *op)
{
    kolo_way_t way = kolo_way_of_number(op->algo);
    if (op->kind != KOLO_RECORD_COLL || way.algo == KOLO_ALGO_COUNT) return NULL;
    return kolo_way_name(kolo_signature_fields(op->word).coll, way);
}

static void words_of(const kolo_record_op_t *op, char *text, size_t bytes)
{
    kolo_verdict_words(&(kolo_verdict_op_t){.word = op->word}, text, bytes);
}

static void print_op(const kolo_record_op_t *op, uint64_t now_ns)
{
    char words[160], duration[32];
    words_of(op, words, sizeof words);
    if (op->kind == KOLO_RECORD_COLL && op->state != KOLO_RECORD_QUEUED)
        printf("  %12" PRIu64, op->number);
    else
        printf("  %12s", op->kind == KOLO_RECORD_COLL ? "" : "p2p");
    printf("  %-40s %-10s", words, states[op->state]);
    if (op->state == KOLO_RECORD_FAILED) printf(" (%s)", kolo_status_string(op->status));
    if (op->begun_ns && op->begun_ns <= now_ns) {
        kolo_verdict_duration(now_ns - op->begun_ns, duration, sizeof duration);
        printf(" %s ago", duration);
    }
    if (op->ended_ns && op->begun_ns && op->ended_ns >= op->begun_ns) {
        kolo_verdict_duration(op->ended_ns - op->begun_ns, duration, sizeof duration);
        printf(", took %s", duration);
    }
    if (op->queued_us) printf(", queued %.1f ms", op->queued_us / 1e3);
    if (algo_of(op)) printf(", %s", algo_of(op));
    printf("\n");
}

static void print_rank(const top_rank_t *r, size_t last)
{
    printf("rank %d, process %d on %s%s", r->view.rank, r->pid, r->view.host, r->stopped ? ", stopped" : "");
    if (r->view.status != KOLO_OK)
        printf(", failed: %s\n  %s\n", kolo_status_string(r->view.status), r->view.error);
    else
        printf(":\n");
    if (r->nops == 0) printf("  has called nothing\n");
    for (uint32_t i = 0; i < r->view.waits.count; i++)
        printf("  its GPU waits for %s rank %d in operation %" PRIu64 " (block %u, step %u)\n",
               r->view.waits.on[i].room ? "room at" : "data from", r->view.waits.on[i].rank, r->view.waits.number,
               r->view.waits.on[i].block, r->view.waits.on[i].step);
    for (size_t i = r->nops > last ? r->nops - last : 0; i < r->nops; i++) print_op(&r->ops[i], r->now_ns);
}

static void print_job(const top_set_t *set, size_t first, size_t count, size_t last, const char *verdict)
{
    const kolo_record_view_t *view = &set->ranks[first].view;
    printf("job %016" PRIx64 " \"%s\", %d ranks, records of %zu\n", view->job, view->name, view->nranks, count);
    for (size_t i = first; i < first + count; i++) print_rank(&set->ranks[i], last);
    printf("verdict:\n");
    for (const char *line = verdict, *end; *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        printf("  %.*s\n", (int)(end - line), line);
    }
}

/* ---- JSON ---- */

static void json_text(const char *key, const char *text, const char *end)
{
    printf("\"%s\": \"", key);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c < 32 || *c >= 127 || *c == '"' || *c == '\\')
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    printf("\"%s", end);
}

static void json_op(const kolo_record_op_t *op, const char *end)
{
    static const char *const kinds[] = {
        [KOLO_RECORD_COLL] = "collective", [KOLO_RECORD_SEND] = "send",     [KOLO_RECORD_RECV] = "recv",
        [KOLO_RECORD_PUT] = "put",         [KOLO_RECORD_SIGNAL] = "signal", [KOLO_RECORD_WAIT] = "wait"};
    _Static_assert(sizeof kinds / sizeof kinds[0] == KOLO_RECORD_KINDS, "each kind has a name");
    char words[160];
    words_of(op, words, sizeof words);
    printf("        {\"index\": %" PRIu64 ", \"number\": %" PRIu64 ", \"count\": %" PRIu64 ", \"bytes\": %" PRIu64
           ", \"root\": %u, ",
           op->index, op->number, op->count, op->count * op->elem, op->root);
    json_text("kind", kinds[op->kind], ", ");
    json_text("what", words, ", ");
    json_text("state", states[op->state], ", ");
    if (op->state == KOLO_RECORD_FAILED) json_text("status", kolo_status_string(op->status), ", ");
    if (algo_of(op)) json_text("algorithm", algo_of(op), ", ");
    printf("\"queued_us\": %u, \"begun_ns\": %" PRIu64 ", \"ended_ns\": %" PRIu64 "}%s\n", op->queued_us,
           op->begun_ns, op->ended_ns, end);
}

static void json_job(const top_set_t *set, size_t first, size_t count, size_t last, const char *verdict, bool wrong)
{
    const kolo_record_view_t *view = &set->ranks[first].view;
    printf("  {\"job\": \"%016" PRIx64 "\", \"nranks\": %d, ", view->job, view->nranks);
    json_text("name", view->name, ", ");
    printf("\"stuck\": %s, ", wrong ? "true" : "false");
    json_text("verdict", verdict, ",\n   \"ranks\": [\n");
    for (size_t i = first; i < first + count; i++) {
        const top_rank_t *r = &set->ranks[i];
        printf("    {\"rank\": %d, \"pid\": %d, \"stopped\": %s, \"now_ns\": %" PRIu64 ", ", r->view.rank, r->pid,
               r->stopped ? "true" : "false", r->now_ns);
        json_text("host", r->view.host, ", ");
        json_text("status", kolo_status_string(r->view.status), ", ");
        json_text("error", r->view.error, ", \"waits\": [");
        for (uint32_t k = 0; k < r->view.waits.count; k++)
            printf("%s{\"number\": %" PRIu64 ", \"rank\": %d, \"room\": %s, \"block\": %u, \"step\": %u}",
                   k ? ", " : "", r->view.waits.number, r->view.waits.on[k].rank,
                   r->view.waits.on[k].room ? "true" : "false", r->view.waits.on[k].block,
                   r->view.waits.on[k].step);
        printf("], \"operations\": [\n");
        for (size_t k = r->nops > last ? r->nops - last : 0; k < r->nops; k++)
            json_op(&r->ops[k], k + 1 < r->nops ? "," : "");
        printf("      ]}%s\n", i + 1 < first + count ? "," : "");
    }
    printf("    ]}%s\n", first + count < set->count ? "," : "");
}

/* Fills in what keeps the ranks of a communicator; false: nothing does. A tensor that somebody has not submitted
 * comes first: the operations of the ranks that wait for it are over. */
static bool judge(const top_set_t *set, size_t first, const kolo_verdict_rank_t *ranks, int n, char *text,
                  size_t bytes)
{
    size_t count = top_job_size(set, first), at = 0;
    if (top_tensor_wait(set, first, count, text, bytes - 1)) {
        at = strlen(text);
        text[at++] = '\n';
        text[at] = '\0';
    }
    bool wrong = kolo_verdict_print(ranks, n, set->ranks[first].view.nranks, text + at, bytes - at);
    if (at && !wrong) text[at] = '\0'; /* "Nobody waits." */
    return wrong || at;
}

int top_dump(const top_options_t *options, const top_set_t *set)
{
    if (options->json) printf("[\n");
    for (size_t first = 0, count; first < set->count; first += count) {
        static char verdict[KOLO_VERDICT_TEXT];
        kolo_verdict_rank_t *ranks;
        count = top_job_size(set, first);
        int n = top_verdict_ranks(set, first, count, &ranks);
        if (!ranks) return TOP_FAILED;
        bool wrong = judge(set, first, ranks, n, verdict, sizeof verdict);
        free(ranks);
        if (options->json)
            json_job(set, first, count, (size_t)options->last, verdict, wrong);
        else
            print_job(set, first, count, (size_t)options->last, verdict);
    }
    if (options->json) printf("]\n");
    return TOP_OK;
}
