/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's user objects: a graph that is gone, and whose replays are over, lets go of those that it held.
 * Then a thread of the driver calls their function.
 */
#include "stream.h"

#include <stdlib.h>

struct CUuserObject_st {
    void *p;
    void (*end)(void *p);
};

typedef struct {
    kolo_cu_object_t *objects;
    size_t n;
    mark_t *behind;
} ending_t;

static void end(kolo_cu_object_t object)
{
    object->end(object->p);
    free(object);
}

static void *end_all(void *arg)
{
    ending_t *e = arg;
    pthread_mutex_lock(&fake_lock);
    fake_await(e->behind);
    pthread_mutex_unlock(&fake_lock);
    for (size_t i = 0; i < e->n; i++) end(e->objects[i]);
    free(e->objects);
    free(e);
    return NULL;
}

void fake_objects_end_locked(kolo_cu_object_t *objects, size_t n, mark_t *behind)
{
    pthread_t thread;
    if (!n) {
        fake_drop(behind);
        return;
    }
    ending_t *e = malloc(sizeof *e);
    if (!e) abort();
    *e = (ending_t){objects, n, behind};
    if (pthread_create(&thread, NULL, end_all, e) || pthread_detach(thread)) abort();
}

/* ---- exported ---- */

kolo_cu_result_t cuUserObjectCreate(kolo_cu_object_t *object, void *p, void (*fn)(void *p), unsigned refs,
                                    unsigned flags)
{
    FAKE_READY();
    if (refs != 1 || flags != KOLO_CU_OBJECT_NO_WAIT)
        return fake_wrong(FAKE_INVALID_VALUE, "cuUserObjectCreate(%u, %u)", refs, flags);
    *object = malloc(sizeof **object);
    if (!*object) abort();
    **object = (struct CUuserObject_st){p, fn};
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuUserObjectRelease(kolo_cu_object_t object, unsigned refs)
{
    FAKE_READY();
    if (refs != 1) return fake_wrong(FAKE_INVALID_VALUE, "cuUserObjectRelease(%u)", refs);
    end(object);
    return KOLO_CU_SUCCESS;
}
