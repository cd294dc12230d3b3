/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of kolo/state.h: buffers and values (state.c), their two copies (state_copy.c), messages of the
 * launcher (state_link.c), changes of the ranks (state_change.c), commits and the loop (state_run.c). It uses
 * public communicators only and is independent of the tensor engine.
 *
 * The launcher and a process talk by files in the private directory that the job has on each host (that of
 * KOLO_ID_FILE; the launcher's agent there carries them, over ssh if need be). Each file holds one line: from.W.N
 * is the Nth of process W, to.W.N the Nth for it, both counted from 0. They appear whole, with mode 0600.
 *
 *     hello WORKER                       I am process WORKER and can be taken in
 *     id PLAN NRANKS ADD HEX             the id by which ADD newcomers come in, to the NRANKS that there are
 *     ready PLAN RANK NRANKS COMMITS     the ranks have changed (or tried to)
 *     left / done                        I leave as I was told / all is done
 *
 *     found PLAN MIN ADD                 be the first rank; take in ADD processes at once if it is not 0
 *     join PLAN MIN RANK NRANKS HEX      come in by this id as RANK of NRANKS
 *     add PLAN ADD                       take in ADD processes
 *     remove PLAN W1,W2,...              go on without these processes
 *     min MIN                            so many ranks are enough now
 *     leave                              you are not needed
 *
 * Plans are numbered upwards; of two that have been heard the later one counts.
 */
#ifndef KOLO_ELASTIC_STATE_H
#define KOLO_ELASTIC_STATE_H

#include "base/slots.h"

#include <kolo/state.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define KOLO_STATE_LINE_MAX 32768 /* bytes of a line of the launcher */
#define KOLO_STATE_LIST_MAX 2048  /* processes that one plan removes */

/* ---- the launcher's words (state_link.c) ---- */

typedef enum {
    KOLO_WORD_FOUND,
    KOLO_WORD_JOIN,
    KOLO_WORD_ADD,
    KOLO_WORD_REMOVE,
    KOLO_WORD_MIN,
    KOLO_WORD_LEAVE
} kolo_word_kind_t;

typedef struct {
    kolo_word_kind_t kind;
    uint32_t plan;
    int min, rank, nranks, add;
    kolo_unique_id_t id;
    int nremove;
    uint32_t remove[KOLO_STATE_LIST_MAX];
} kolo_word_t;

/* Reads a line (without its end, ended by 0, `bytes` long). False: it is none of the launcher's. */
bool kolo_state_word_parse(const char *line, size_t bytes, kolo_word_t *word);
/* Writes an id as 256 digits and a final 0. */
void kolo_state_word_id(const kolo_unique_id_t *id, char text[2 * KOLO_UNIQUE_ID_BYTES + 1]);

typedef struct {
    char dir[PATH_MAX];
    int watch; /* -1: no launcher */
    uint32_t worker, said, heard;
    bool maybe; /* a file may have come since we looked */
    char line[KOLO_STATE_LINE_MAX];
} kolo_state_link_t;

/* Opens the link to kolorun; id_file: KOLO_ID_FILE. What fails leaves a link to be closed. */
kolo_status_t kolo_state_link_open(kolo_state_link_t *link, const char *id_file, uint32_t worker);
kolo_status_t kolo_state_link_say(kolo_state_link_t *link, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Waits up to timeout_ms (-1: as long as the launcher lives, whose end is ours) for a word; *got tells whether one
 * has come. */
kolo_status_t kolo_state_link_hear(kolo_state_link_t *link, int timeout_ms, kolo_word_t *word, bool *got);
void kolo_state_link_close(kolo_state_link_t *link);

/* ---- the state ---- */

typedef struct {
    char name[KOLO_STATE_NAME_MAX + 1];
    unsigned char *buffer; /* the program's, but of a value the state's; NULL: an empty value */
    size_t bytes;
    bool is_value;
} kolo_state_part_t;

typedef struct {         /* of all parts, back to back */
    unsigned char *data; /* NULL: it has held nothing yet */
    size_t room;         /* of data */
    uint64_t *sizes;     /* of each part; NULL: the ranks have not met */
} kolo_state_copy_t;

struct kolo_state {
    kolo_slot_t slot;
    kolo_state_config_t config;
    kolo_state_part_t *parts;
    size_t nparts, nvalues, bytes; /* bytes: of the buffers */

    /* `next` is what a commit is made of until all ranks are known to have it; after a loss it is as good as that
     * of a rank that has seen the commit succeed. */
    kolo_state_copy_t now, next;
    uint64_t number; /* 1 + the number of the commit in `now`, 0: none */
    bool has_next;   /* commit `number` lies in `next` */

    kolo_comm_t comm;
    int rank, nranks, min;
    uint32_t worker;   /* the launcher's number of this process */
    uint32_t *workers; /* of each rank */
    bool entered, running, leaving;
    bool calling;      /* kolo_state_run() is in the program's function */
    bool in_round;     /* the program does what its function does */
    kolo_status_t met; /* how getting in has ended */

    kolo_state_link_t link;
    kolo_word_t word; /* the plan that was heard last; .plan is 0 if none */
    uint32_t plan;    /* the last one that was tried */
    int plan_source;  /* the rank that knows the one that has been agreed on, -1: none has */

    uint64_t changes, losses, synced;
    int barren; /* losses since the last commit */
};

/* Checks a handle for `what` (state.c). */
kolo_status_t kolo_state_check(kolo_state_t s, const char *what);

/* ---- state_copy.c ---- */

/* Makes memory for two copies of what is registered. */
kolo_status_t kolo_state_copies_open(kolo_state_t s);
void kolo_state_copies_close(kolo_state_t s);
kolo_status_t kolo_state_copy_out(kolo_state_t s, kolo_state_copy_t *copy);
kolo_status_t kolo_state_copy_in(kolo_state_t s, const kolo_state_copy_t *copy);
/* Sends the copy from rank `source` to the same of all others. Collective. */
kolo_status_t kolo_state_copy_send(kolo_state_t s, kolo_state_copy_t *copy, int source);
void kolo_state_promote(kolo_state_t s); /* what lies in `next` is the newest commit */

/* ---- state_change.c ---- */

/* Tells whether a status means that ranks were lost. */
bool kolo_state_is_loss(kolo_status_t status);
/* Ends here what all ranks see alike. None leaves before the others have seen it: who comes late would take who has
 * left for lost, and go on alone. Returns the status, whose words stay. */
kolo_status_t kolo_state_end_together(kolo_state_t s, kolo_status_t status);
/* Makes the first communicator, given, founded or joined, with the state that is there. KOLO_IN_PROGRESS: not
 * needed. */
kolo_status_t kolo_state_get_in(kolo_state_t s);
/* Hears what the launcher has said meanwhile, for up to timeout_ms if it has nothing new. */
kolo_status_t kolo_state_listen(kolo_state_t s, int timeout_ms);
/* Carries out the plan that has been agreed on. KOLO_IN_PROGRESS: this process leaves. */
kolo_status_t kolo_state_change(kolo_state_t s);
/* Goes on without the ranks that are lost. */
kolo_status_t kolo_state_mend(kolo_state_t s);

extern int64_t kolo_state_change_ms;

#endif
