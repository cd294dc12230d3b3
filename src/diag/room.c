/* SPDX-License-Identifier: Apache-2.0
 *
 * How this room takes part in every oob.
 */
#include "diag/state.h"

#include <stdlib.h>

static bool ends_waits(const kolo_oob_t *oob)
{
    return atomic_load_explicit(&kolo_diag(oob)->difference.found, memory_order_acquire) ||
           atomic_load_explicit(&kolo_diag(oob)->quitter.found, memory_order_acquire);
}

static kolo_status_t why(kolo_oob_t *oob, const char *doing)
{
    (void)doing;
    if (!ends_waits(oob)) return KOLO_OK;
    oob->failed = true;
    return kolo_diag_difference(oob);
}

static void connected(kolo_conn_t *conn)
{
    kolo_difference_tell(conn);
    kolo_left_tell(conn);
}

static void fini(kolo_oob_t *oob)
{
    free(kolo_diag(oob)->left);
}

_Static_assert(KOLO_FINDINGS_FRAME_BYTES <= KOLO_FRAME_BODY_MAX, "findings are taken at once");
_Static_assert(KOLO_SUMS_FRAME_MOST <= KOLO_FRAME_BODY_MAX, "and sums");
static const kolo_frame_rule_t frames[] = {
    {KOLO_FRAME_BOARD, KOLO_BOARD_FRAME_BYTES, KOLO_BOARD_FRAME_BYTES, .arrived = kolo_board_arrived},
    {KOLO_FRAME_PAIR, KOLO_PAIR_FRAME_BYTES, KOLO_PAIR_FRAME_BYTES, .arrived = kolo_board_arrived},
    {KOLO_FRAME_DIFFERENCE, KOLO_DIFFERENCE_FRAME_BYTES, KOLO_DIFFERENCE_FRAME_BYTES,
     .arrived = kolo_difference_arrived},
    {KOLO_FRAME_SUMS, KOLO_SUMS_FRAME_BYTES(1), KOLO_SUMS_FRAME_MOST, .arrived = kolo_sums_arrived},
    {KOLO_FRAME_LEFT, KOLO_LEFT_FRAME_BYTES, KOLO_LEFT_FRAME_BYTES, .arrived = kolo_left_arrived},
    {KOLO_FRAME_SURVEY, 0, 0, .arrived = kolo_diag_survey_asked},
    {KOLO_FRAME_FINDINGS, KOLO_FINDINGS_FRAME_BYTES, KOLO_FINDINGS_FRAME_BYTES, .arrived = kolo_findings_arrived},
};

static const kolo_room_t room = {.frames = frames,
                                 .nframes = KOLO_COUNTOF(frames),
                                 .bytes = sizeof(kolo_diag_t),
                                 .peer_bytes = sizeof(kolo_peer_diag_t),
                                 .connected = connected,
                                 .ends_waits = ends_waits,
                                 .why = why,
                                 .look = kolo_board_look,
                                 .fini = fini};

__attribute__((constructor)) static void enter(void)
{
    kolo_rooms_register(KOLO_ROOM_DIAG, &room);
}
