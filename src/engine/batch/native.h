/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on the GPUs themselves: tensors that all ranks have on their GPUs are reduced by a communicator of
 * GPUs (or by NCCL), without host memory. The loop queues everything on the engine's streams of its GPU and goes
 * on: waits for the events of the submissions, packing, the collective, unpacking, a mark. Long batches are packed
 * and unpacked on streams of their own, in two buffers in turn, beside the collectives before and after. The
 * finisher completes the tensors when the mark is reached (finish.c). A tensor whose submission named a stream is
 * completed at once, and that stream waits.
 *
 * An operation is native if every rank has the tensor on its own GPU and no rank has joined (a rank that has joined
 * may have no GPU). All others pass through host memory (device.h). All ranks decide alike.
 */
#ifndef KOLO_ENGINE_BATCH_NATIVE_H
#define KOLO_ENGINE_BATCH_NATIVE_H

#include "engine/batch/device.h"

/* Tells whether an operation might run on the GPUs. */
bool kolo_native_may(const kolo_set_t *s, const kolo_response_t *r);
/* Decides; if so, s->engine->native is set until the end, and what is queued comes after the batch's inputs. */
kolo_status_t kolo_native_begin(kolo_set_t *s, kolo_response_t *const *batch, size_t n, bool *native);
/* Returns the stream on which moves are queued. NULL: nothing runs on a GPU now. */
void *kolo_native_stream(const kolo_set_t *s);
/* Room on the GPU until the end: for what is packed or scaled, for results that nobody wants, for Adasum. */
typedef enum {
    KOLO_ROOM_INPUT,
    KOLO_ROOM_OUTPUT,
    KOLO_ROOM_SCRATCH,
    KOLO_ROOM_SIDES /* two */
} kolo_native_room_t;
kolo_status_t kolo_native_room(kolo_set_t *s, kolo_native_room_t which, size_t bytes, void **memory);
kolo_status_t kolo_native_lift(kolo_set_t *s, const kolo_lift_t *list, size_t n);
/* Sends to a rank of the set and receives from it, by the communicator of GPUs, whatever the backends are. */
typedef struct {
    const void *out;
    size_t nout;
    void *in;
    size_t nin;
    kolo_type_t type;
} kolo_swap_t;
kolo_status_t kolo_native_swap(kolo_set_t *s, int peer, const kolo_swap_t *w);
/* Finds the buffer that a batch is packed into. */
kolo_status_t kolo_native_buffer(kolo_set_t *s, size_t bytes, void **packed);
/* Makes what is queued for the collective come behind the packing, and the unpacking behind the collective. */
kolo_status_t kolo_native_packed(kolo_set_t *s);
kolo_status_t kolo_native_reduced(kolo_set_t *s);
/* Notes for the timeline what was queued since the last step. */
void kolo_native_step(kolo_set_t *s, int what);
/* Ends a batch whose work is queued. Entries whose callers' streams wait are complete, and so are those that have
 * failed: they are put into `done`. *later: the flight of the others, to be handed over; NULL: there are none. */
kolo_status_t kolo_native_end(kolo_set_t *s, kolo_response_t *const *batch, size_t n, kolo_entry_t **done,
                              size_t *ndone, kolo_flight_t **later);
/* Returns how a flight of a GPU ended: its mark is reached, but its kernels may have been ended. */
kolo_status_t kolo_native_result(struct kolo_tensor_engine *e, const kolo_flight_t *flight);

/* Waits until what the set has on its way on GPUs has come to its end, also where only the timeline asks for it. */
kolo_status_t kolo_native_settle(const kolo_set_t *s);
/* Gives up what the GPUs do after this rank has not queued its part of an operation, for which the others' kernels
 * wait (failed.c): what is on its way comes to its end, then all ranks' communicators of GPUs do. */
void kolo_native_give_up(kolo_set_t *s);
/* Drops the communicator of GPUs as all have agreed; the next operation on GPUs makes a new one. Collective. */
kolo_status_t kolo_native_renew(kolo_set_t *s);

#endif
