/* SPDX-License-Identifier: Apache-2.0
 *
 * A verdict in words on a communicator that does not get on, from what its ranks did last: which ranks did not
 * enter an operation, which entered a different one, who waits for whom, of which ranks nothing is known and why,
 * and what is complete everywhere. Made by kolo-top from flight records, and by a rank that ran into its time limit
 * from what its peers answer. Pure; what it is given may come from outside and need not make sense.
 */
#ifndef KOLO_DIAG_VERDICT_H
#define KOLO_DIAG_VERDICT_H

#include "base/recorder.h"

#define KOLO_VERDICT_OPS  8          /* of each rank, the last ones */
#define KOLO_AGE_UNKNOWN  UINT64_MAX /* of an operation whose time was not taken */
#define KOLO_VERDICT_TEXT 8192       /* enough for the long form of a large job */

typedef struct {
    uint64_t number, word;
    uint64_t age_ns; /* since it began, or, if it is over, since it ended */
    uint32_t peer;   /* of a send or receive */
    kolo_record_kind_t kind;
    kolo_record_state_t state;
} kolo_verdict_op_t;

typedef enum {
    KOLO_RANK_SILENT,     /* asked, and did not answer */
    KOLO_RANK_HEARD,      /* ops are there */
    KOLO_RANK_GONE,       /* its process does not exist any more */
    KOLO_RANK_ELSEWHERE,  /* on another host, of which there is no record */
    KOLO_RANK_UNREADABLE, /* its process may not be looked into */
    KOLO_RANK_UNRECORDED  /* it lives, without a record */
} kolo_rank_presence_t;

typedef struct {
    int rank;
    kolo_rank_presence_t presence;
    bool stopped;              /* its process is stopped: by a signal, or a debugger */
    int pid;                   /* 0: not known */
    char host[32];             /* "": not known */
    kolo_status_t failed;      /* what ended the use of its communicator, else KOLO_OK */
    kolo_record_waits_t waits; /* of its device */
    kolo_callback_t callback;  /* in which function of the user it is, ... */
    uint64_t callback_ns;      /* ... and for how long; 0: in none */
    uint32_t nops;
    kolo_verdict_op_t ops[KOLO_VERDICT_OPS]; /* in the order of their calls */
} kolo_verdict_rank_t;

/* Prints what ranks[0..count) show: each rank at most once, in rising order. The long form has a line per finding;
 * the short form is the one that says most. Returns whether somebody waits for something that is not under way. */
bool kolo_verdict_print(const kolo_verdict_rank_t *ranks, int count, int nranks, char *text, size_t bytes);
bool kolo_verdict_brief(const kolo_verdict_rank_t *ranks, int count, int nranks, char *text, size_t bytes);

/* Makes the newest of these the ops of a rank; now_ns by the clock of its host. */
void kolo_verdict_take(kolo_verdict_rank_t *rank, const kolo_record_op_t *ops, size_t count, uint64_t now_ns);
/* Prints "all_reduce 4 float32 sum", "recv 1 int32 from rank 3". */
void kolo_verdict_words(const kolo_verdict_op_t *op, char *text, size_t bytes);
/* Prints "350 ms", "12.3 s", "4 min". */
void kolo_verdict_duration(uint64_t ns, char *text, size_t bytes);

#endif
