/* SPDX-License-Identifier: Apache-2.0
 *
 * The kinds of frames that are this room's own.
 */
#include "oob/internal.h"

static const kolo_frame_rule_t frames[] = {
    {.kind = KOLO_FRAME_MESSAGE, .most = KOLO_OOB_MESSAGE_MAX},
    {.kind = KOLO_FRAME_GATHER, .most = KOLO_GATHER_FRAME_MAX},
    {.kind = KOLO_FRAME_BROADCAST, .most = KOLO_OOB_MESSAGE_MAX},
    {.kind = KOLO_FRAME_FAREWELL, .arrived = kolo_farewell_arrived},
    {.kind = KOLO_FRAME_NOTIFY, .arrived = kolo_oob_notify_arrived},
    {.kind = KOLO_FRAME_WORDS, .most = KOLO_WORDS_FRAME_MAX, .arrived = kolo_farewell_words_arrived},
};
_Static_assert(KOLO_WORDS_FRAME_MAX <= KOLO_FRAME_BODY_MAX, "words are taken at once");

__attribute__((constructor)) static void enter(void)
{
    kolo_rooms_register_frames(frames, KOLO_COUNTOF(frames));
}
