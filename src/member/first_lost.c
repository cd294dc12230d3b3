/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose fault was it? A rank that loses a wire sees the neighbour that left it, which may only have given up
 * itself. Out of band the name of the rank that was lost first goes round, in farewells; here an operation asks for
 * it.
 */
#include "member/life.h"

#include <stdio.h>

static bool word_has_come(kolo_oob_t *oob, void *arg)
{
    (void)arg;
    const kolo_life_t *l = kolo_life(oob);
    return l->lost >= 0 || l->partition || l->revoked || l->odd >= 0;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_oob_t *oob = arg;
    snprintf(buf, bytes, "word of who was lost, as %s rank %d", oob->name, oob->rank);
}

int kolo_member_first_lost(kolo_oob_t *oob, int wait_ms, char *why, size_t bytes)
{
    pthread_mutex_lock(&oob->lock);
    kolo_status_t status = KOLO_OK;
    if (!oob->closed) status = kolo_oob_await(oob, word_has_come, NULL, kolo_deadline_ms(wait_ms), describe, oob);
    (void)status; /* no word is an answer too */
    oob->failed = true;
    int lost = kolo_life(oob)->lost;
    const char *words = kolo_life(oob)->partition ? kolo_life(oob)->partition_why
                        : lost >= 0               ? kolo_life(oob)->lost_why
                                                  : "";
    snprintf(why, bytes, "%s", words);
    if (kolo_life(oob)->revoked && lost < 0) lost = kolo_life(oob)->revoked_by;
    pthread_mutex_unlock(&oob->lock);
    return lost;
}
