/* SPDX-License-Identifier: Apache-2.0
 *
 * With --gpu the sums are made of tensors on GPUs, as those of a training program there are: each tensor is copied
 * to the GPU, reduced there, and copied back. The CUDA driver is loaded for it, so the example builds without.
 */
#ifndef DIGITS_GPU_H
#define DIGITS_GPU_H

#include <stdbool.h>
#include <stddef.h>

#define GPU_SLOTS 16

/* Takes the GPU of this worker. Like the functions below that fail, it leaves the reason in gpu_error(). */
bool gpu_open(int worker);
const char *gpu_error(void);
/* Its number; -1: none is used. */
int gpu_number(void);
/* Queues a copy of the tensor to the GPU: where it lies there, and an event behind the copy. NULL: the GPU
 * fails. */
void *gpu_take(int slot, const void *data, size_t bytes, void **ready);
/* Copies it back, and waits. */
bool gpu_give(int slot, void *data, size_t bytes);

#endif
