/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that fail though no rank is lost: a backend refuses its arguments, or gives an error of its own. Only
 * their tensors fail; the engine goes on, and so do the ranks on which the operation succeeded.
 *
 * All ranks run the same operations in the same order, so a number names one. A rank keeps the tensors of one that
 * has failed and says in its next cycle that it has some (negotiate.c). Then all ranks find out together which
 * operation is the first and which is the lowest rank that it failed on, whose words all take: a program sees the
 * same error everywhere. Costs nothing while nothing fails.
 *
 * On GPUs the others' kernels would wait for a rank that refused: it revokes the communicator of GPUs, which ends
 * them and fails what they had on their way, and when all have agreed the next operation there makes a new one.
 */
#include "comm/comm.h"
#include "engine/batch/device.h"
#include "engine/batch/native.h"
#include "engine/batch/perform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kolo_failed {
    struct kolo_failed *next;
    uint64_t operation;
    kolo_status_t status;
    bool native; /* it was to run on GPUs */
    char text[KOLO_ERROR_TEXT_BYTES];
    size_t n;
    kolo_entry_t *entries[];
};

typedef struct {
    int32_t status;
    uint32_t native;
    char text[KOLO_ERROR_TEXT_BYTES];
} words_t;

/* Tells whether it is what a loss or an abort makes of an operation; a rank that went on would wait for ever.
 * Communicators of GPUs are revoked here alone. */
static bool is_end(kolo_status_t status, bool native)
{
    if (native && status == KOLO_ERR_REVOKED) return false;
    return status == KOLO_ERR_REMOTE || status == KOLO_ERR_TIMEOUT || status == KOLO_ERR_ABORTED ||
           status == KOLO_ERR_PARTITION || status == KOLO_ERR_REVOKED;
}

static bool is_whole(const kolo_set_t *s)
{
    kolo_status_t status = KOLO_OK;
    if (kolo_engine_status(s->engine) != KOLO_OK) return false;
    if (kolo_comm_get_async_error(s->comm, &status) != KOLO_OK) return false;
    return status == KOLO_OK || status == KOLO_IN_PROGRESS;
}

kolo_status_t kolo_failed_keep(kolo_set_t *s, kolo_response_t *const *batch, size_t n, kolo_status_t status)
{
    char text[KOLO_ERROR_TEXT_BYTES], title[KOLO_TENSOR_NAME_MAX + 16], more[40] = "";
    snprintf(text, sizeof text, "%s", kolo_error_text());
    bool native = s->engine->native != NULL;
    if (!s->engine->backend_failed || is_end(status, native) || !is_whole(s)) return kolo_fail(status, "%s", text);
    struct kolo_failed *failed = malloc(sizeof *failed + n * sizeof *failed->entries);
    if (!failed) return kolo_fail(status, "%s", text);
    if (n > 1) snprintf(more, sizeof more, " and %zu more", n - 1);
    *failed = (struct kolo_failed){.operation = s->operations, .status = status, .native = native};
    snprintf(failed->text, sizeof failed->text, "%s of %.300s%s failed on rank %d: %.600s",
             kolo_tensor_request_work_name(batch[0]->request.work),
             kolo_tensor_request_title(&batch[0]->request, title, sizeof title), more, s->engine->rank, text);
    for (size_t i = 0; i < n; i++) {
        kolo_entry_t *entry = batch[i]->entry;
        if (!entry) continue; /* this rank has joined */
        kolo_stage_drop(entry);
        failed->entries[failed->n++] = entry;
    }
    *s->failed_tail = failed;
    s->failed_tail = &failed->next;
    if (native) kolo_native_give_up(s);
    return KOLO_OK;
}

static void complete_first(kolo_set_t *s, const words_t *words)
{
    struct kolo_failed *failed = s->failed;
    s->failed = failed->next;
    if (!s->failed) s->failed_tail = &s->failed;
    for (size_t i = 0; i < failed->n; i++)
        kolo_entry_fail(failed->entries[i], (kolo_status_t)words->status, words->text);
    if (failed->n > 0) kolo_tensors_finish(&s->lane, failed->entries, failed->n);
    free(failed);
}

/* Returns its rank in the order in which words are taken: those who only heard of another's failure come last. */
static uint64_t place_of(const kolo_set_t *s, const struct kolo_failed *failed)
{
    bool heard = failed->native && failed->status == KOLO_ERR_REVOKED;
    return (uint64_t)s->rank + (heard ? (uint64_t)s->size : 0);
}

kolo_status_t kolo_failed_agree(kolo_set_t *s)
{
    for (;;) {
        const uint64_t places = 2 * (uint64_t)s->size;
        uint64_t mine = UINT64_MAX, first;
        words_t words = {0};
        if (s->failed) mine = s->failed->operation * places + place_of(s, s->failed);
        KOLO_TRY(kolo_all_reduce(&mine, &first, 1, KOLO_UINT64, KOLO_MIN, s->comm, NULL));
        if (first == UINT64_MAX) return KOLO_OK;
        int root = (int)(first % places % (uint64_t)s->size);
        if (root == s->rank) {
            words.status = s->failed->status;
            words.native = s->failed->native;
            memcpy(words.text, s->failed->text, sizeof words.text);
        }
        KOLO_TRY(kolo_broadcast(&words, &words, sizeof words, KOLO_UINT8, root, s->comm, NULL));
        if (words.status <= KOLO_OK || words.status > KOLO_ERR_REVOKED ||
            !memchr(words.text, '\0', sizeof words.text))
            return kolo_fail(KOLO_ERR_PROTOCOL, "engine: rank %d sent a malformed report of a failed operation",
                             s->ranks[root]);
        if (mine != UINT64_MAX && mine / places == first / places) complete_first(s, &words);
        if (words.native) KOLO_TRY(kolo_native_renew(s));
    }
}

void kolo_failed_free(kolo_set_t *s)
{
    while (s->failed) {
        struct kolo_failed *failed = s->failed;
        s->failed = failed->next;
        free(failed);
    }
    s->failed_tail = &s->failed;
}
